"""CDN server: sites of games and objects by signed URL. Never the origin of API or console."""
