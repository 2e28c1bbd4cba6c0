"""The maths of the tagger, arrays in, arrays out: numpy alone, no files and no framework."""
