"""``optistack bench``: closed-loop coding-agent sessions against any OpenAI-compatible endpoint."""
