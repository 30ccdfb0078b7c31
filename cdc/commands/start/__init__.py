"""Commands to begin with: write a config, check it, show it, run local servers, run the demo."""
