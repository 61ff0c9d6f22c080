"""The recording tap: token ids of some answers kept on disk, to train a drafter on. Off unless it is configured."""
