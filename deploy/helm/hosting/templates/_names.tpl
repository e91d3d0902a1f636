{{- define "hosting.labels" -}}
app.kubernetes.io/name: hosting
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "hosting.selector" -}}
app.kubernetes.io/name: hosting
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Address of the service. The variable exists in each Pod of the namespace and needs no DNS. */}}
{{- define "hosting.address" -}}
$({{ .Release.Name | upper | replace "-" "_" }}_SERVICE_HOST)
{{- end }}

{{- define "hosting.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Settings that the service and the nodes share. */}}
{{- define "hosting.settings" -}}
- { name: PYSERVICE_CONFIG, value: /etc/hosting/service.toml }
- { name: PYSERVICE_DATA_DIR, value: /var/lib/hosting/data }
- { name: PYSERVICE_LOG_FORMAT, value: json }
- { name: PYSERVICE_RUNTIME__PLACEMENT, value: kubernetes }
- { name: PYSERVICE_LOBBY_API_URL, value: "http://{{ include "hosting.address" . }}:8080" }
- { name: PYSERVICE_KUBERNETES__NAMESPACE, value: {{ .Values.games.namespace }} }
- { name: PYSERVICE_KUBERNETES__SERVICE_NAME, value: {{ .Release.Name }} }
- { name: PYSERVICE_KUBERNETES__SERVICE_IMAGE, value: {{ required "image.service is missing" .Values.image.service | quote }} }
- { name: PYSERVICE_KUBERNETES__RUNNER_IMAGE, value: {{ required "image.runner is missing" .Values.image.runner | quote }} }
- { name: PYSERVICE_KUBERNETES__PULL_SECRETS, value: {{ join "," .Values.image.pullSecrets | quote }} }
- { name: PYSERVICE_KUBERNETES__GROUP_PULL_SECRETS, value: {{ toJson .Values.games.pullSecrets | quote }} }
- { name: PYSERVICE_KUBERNETES__PRIORITY_CLASS, value: {{ .Release.Name }}-games }
- { name: PYSERVICE_KUBERNETES__NODE_PORTS, value: {{ .Values.node.ports | quote }} }
- { name: PYSERVICE_KUBERNETES__ARCHIVE_PORT, value: {{ .Values.node.archivePort | quote }} }
- { name: PYSERVICE_KUBERNETES__ARCHIVE_CACHE_BYTES, value: {{ .Values.node.archiveCacheBytes | int64 | quote }} }
- { name: PYSERVICE_KUBERNETES__REGIONS, value: {{ toJson .Values.games.regions | quote }} }
{{- if .Values.node.tls.secret }}
- { name: PYSERVICE_EDGE__CERTIFICATES, value: {{ list (dict "server_names" .Values.node.tls.hosts "cert" "/etc/hosting/players/tls.crt" "key" "/etc/hosting/players/tls.key") | toJson | quote }} }
{{- end }}
{{- end }}

{{- define "hosting.playersMount" -}}
{{- if .Values.node.tls.secret }}
- { name: players, mountPath: /etc/hosting/players, readOnly: true }
{{- end }}
{{- end }}

{{- define "hosting.playersVolume" -}}
{{- if .Values.node.tls.secret }}
- name: players
  secret: { secretName: {{ .Values.node.tls.secret }}, defaultMode: 0440 }
{{- end }}
{{- end }}
