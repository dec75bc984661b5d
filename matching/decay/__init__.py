"""The k best messages since registration, of scores that fade with time. Start in `matching.decay.room`."""
