"""Judgements on measured values. Pure: numbers in, verdict out; numpy and scipy do the arithmetic."""
