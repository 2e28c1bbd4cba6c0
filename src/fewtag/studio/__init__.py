"""The studio without its server: a project of pictures, labels and answers, and every action on it."""
