@tool
extends EditorPlugin
## Makes the nodes HostingMatchmaker and HostingLobbyServer available.
## Their classes have global names, so the plugin itself does nothing.
