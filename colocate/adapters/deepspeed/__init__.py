"""The trainer port over DeepSpeed: ranks in processes of their own, commanded over a socket."""
