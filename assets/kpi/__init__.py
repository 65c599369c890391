"""What iterations gave, what they cost and how they ended. A figure that no record has is None, not 0."""
