"""Exchange with other programs: tags in XMP sidecars and in pictures, and data sets in their formats."""
