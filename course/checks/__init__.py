"""The parts of every lab: exercise, prediction, report, check, quiz and progress."""
