"""Files of subscriptions: drawn from messages, checked and previewed before a run."""
