"""The campaign: every catalog entry of an architecture on the simulator, ragged sizes under every schedule."""
