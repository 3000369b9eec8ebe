/** An example of every request body, shown in the API reference. docs.test.ts checks each against its route's schema. */
export const EXAMPLE_BODIES: Record<string, object> = {
  'POST /v1/sandboxes': { shape: 's-1vcpu-1gb', rootfs: 'debian:13', name: 'web' },
  'PATCH /v1/sandboxes/{id}': { auto_pause_after_seconds: 600, auto_resume: true },
  'POST /v1/sandboxes/{id}/fork': { count: 2 },
  'POST /v1/sandboxes/{id}/resize': { disk_mib: 20_480 },
  'POST /v1/sandboxes/{id}/exec': { cmd: 'sh', args: ['-c', 'uname -a'] },
  'POST /v1/sandboxes/{id}/ssh-pubkeys': {
    keys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFnO0ClQTR3TcmB7X1Cz1pN2Lq1Jm7cJp0Zt0bqz2vXw ada@laptop'],
  },
  'POST /v1/sandboxes/{id}/processes': { cmd: 'python3', args: ['-m', 'http.server', '8000'], cwd: '/root' },
  'POST /v1/sandboxes/{id}/processes/{process_id}/input': { data_base64: 'bHMgLWwK' },
  'POST /v1/sandboxes/{id}/processes/{process_id}/resize': { rows: 40, cols: 120 },
  'POST /v1/sandboxes/{id}/processes/{process_id}/signal': { signal: 'SIGTERM' },
  'PUT /v1/sandboxes/{id}/egress': { egress: ['api.github.com:443', '*.debian.org'] },
  'POST /v1/networks': { name: 'backend' },
  'POST /v1/disks': {
    name: 'media',
    kind: 's3',
    config: { bucket: 'media', endpoint: 'https://s3.eu-west-1.amazonaws.com', region: 'eu-west-1' },
    credentials: { access_key: 'AKIAIOSFODNN7EXAMPLE', secret_key: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY' },
  },
  'PATCH /v1/disks/{idOrName}': {
    credentials: { access_key: 'AKIAIOSFODNN7EXAMPLE', secret_key: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY' },
  },
  'POST /v1/sandboxes/{id}/disks': { disk_id: 'media', mount_path: '/mnt/media', read_only: true },
  'POST /v1/templates': { name: 'tools', dockerfile: 'FROM debian:13\nRUN apt-get update && apt-get install -y jq\n' },
  'POST /v1/webhook-endpoints': {
    url: 'https://hooks.example.com/warren',
    events: ['sandbox.create', 'sandbox.destroy'],
  },
  'POST /v1/sandboxes/{id}/networks': { id: 'backend' },
  'POST /v1/sandboxes/{id}/bandwidth/recharge': { add_bytes: 1_073_741_824 },
}
