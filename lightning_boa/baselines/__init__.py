"""Other systems for training on unequal devices, as strategies to compare with."""
