"""Jobs that show what the schedulers do: each a function with a report, without a command line."""
