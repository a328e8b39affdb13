"""The rhythm of any lab: exercise, prediction, report, check, quiz, progress."""
