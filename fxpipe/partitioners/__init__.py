"""Which stage every node goes to: by a dynamic programme, by hand, or after an earlier plan."""
