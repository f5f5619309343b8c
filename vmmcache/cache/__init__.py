"""The cache: where slots are, who has them, how many there may be, and what is agreed on over ranks."""
