"""The labs: one folder each, named like its notebook."""
