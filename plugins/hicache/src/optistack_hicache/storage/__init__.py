"""The files of a storage tier: what they are, how much room they take, whether they are whole."""
