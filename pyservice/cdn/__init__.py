"""The listener of games' sites and of signed object URLs: never the origin of API or console.

Which site belongs to a name is the control plane's; it is asked through `sites.SiteSource`.
"""
