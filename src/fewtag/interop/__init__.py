"""What other programs read and write: tags in XMP sidecars and pictures, data sets, hubs."""
