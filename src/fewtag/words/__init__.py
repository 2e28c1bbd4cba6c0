"""Label names to word vectors."""
