"""The verification of drafts: token by token, in blocks, by one rule or one for each place."""
