"""Convert a checkpoint to NVFP4, file by file: what is read, what is written, and how it is proven."""
