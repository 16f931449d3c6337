"""Data sets as streams of prompts."""
