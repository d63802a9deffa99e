"""How the swarm asks the web: guarded, by robots.txt, by name, within limits."""
