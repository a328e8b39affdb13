"""A GPT: the rungs of a ResNet on a transformer, and those that only a transformer has."""
