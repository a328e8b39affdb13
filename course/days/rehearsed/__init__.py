"""What a script would do elsewhere, or with other numbers: judged aside, from its text."""
