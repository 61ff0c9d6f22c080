"""Making a drafter: its network, the data, the training, and what acceptance it reaches. Needs the extra ``train``."""
