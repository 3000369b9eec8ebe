/**
 * What is recorded in the audit log, as a table over all routes that change something. A route that is missing here is
 * recorded under its method and path; audit.test.ts demands a line for each.
 *
 * `unrecorded` is for calls that continue something recorded already: the input of a process, the size of its terminal. One
 * session in a terminal would otherwise write thousands of entries (docs/decisions/0031-audit-log.md).
 */
export type RouteAudit = {
  action: string
  /** The target is the id in the response, because the request has none. */
  created?: true
  /** Work inside a guest: the entry is written without delaying the response. */
  inGuest?: true
}

export const AUDITED_ROUTES: Readonly<Record<string, RouteAudit | 'unrecorded'>> = {
  'POST /v1/sandboxes': { action: 'sandbox.create', created: true },
  'PATCH /v1/sandboxes/:id': { action: 'sandbox.patch' },
  'DELETE /v1/sandboxes/:id': { action: 'sandbox.destroy' },
  'POST /v1/sandboxes/:id/pause': { action: 'sandbox.pause' },
  'POST /v1/sandboxes/:id/resume': { action: 'sandbox.resume' },
  'POST /v1/sandboxes/:id/fork': { action: 'sandbox.fork' },
  'POST /v1/sandboxes/:id/resize': { action: 'sandbox.resize' },
  'PUT /v1/sandboxes/:id/egress': { action: 'sandbox.egress.set' },
  'POST /v1/sandboxes/:id/ssh-pubkeys': { action: 'sandbox.ssh_pubkey.update' },
  'POST /v1/sandboxes/:id/bandwidth/recharge': { action: 'sandbox.bandwidth.update' },
  'POST /v1/sandboxes/:id/access-token': { action: 'access_token.create' },
  'POST /v1/sandboxes/:id/access-token/rotate': { action: 'access_token.rotate' },
  'DELETE /v1/sandboxes/:id/access-token': { action: 'access_token.delete' },
  'POST /v1/networks': { action: 'network.create', created: true },
  'DELETE /v1/networks/:id': { action: 'network.delete' },
  'POST /v1/sandboxes/:id/networks': { action: 'network.attach' },
  'DELETE /v1/sandboxes/:id/networks/:net': { action: 'network.detach' },
  'POST /v1/disks': { action: 'disk.create', created: true },
  'PATCH /v1/disks/:idOrName': { action: 'disk.rotate' },
  'DELETE /v1/disks/:idOrName': { action: 'disk.delete' },
  'POST /v1/sandboxes/:id/disks': { action: 'disk.attach' },
  'DELETE /v1/sandboxes/:id/disks/:disk_id': { action: 'disk.detach' },
  'POST /v1/templates': { action: 'template.submit', created: true },
  'DELETE /v1/templates/:id': { action: 'template.delete' },
  'POST /v1/webhook-endpoints': { action: 'webhook.create', created: true },
  'DELETE /v1/webhook-endpoints/:id': { action: 'webhook.delete' },
  'POST /v1/webhook-endpoints/:id/suspend': { action: 'webhook.suspend' },
  'POST /v1/webhook-endpoints/:id/resume': { action: 'webhook.resume' },
  'POST /v1/webhook-endpoints/:id/test': { action: 'webhook.test' },
  'POST /v1/webhook-endpoints/:id/deliveries/:delivery/replay': { action: 'webhook.replay' },
  'POST /v1/sandboxes/:id/exec': { action: 'sandbox.exec', inGuest: true },
  'PUT /v1/sandboxes/:id/files': { action: 'sandbox.file.put', inGuest: true },
  'POST /v1/sandboxes/:id/processes': { action: 'process.start', inGuest: true },
  'DELETE /v1/sandboxes/:id/processes/:process_id': { action: 'process.delete', inGuest: true },
  'POST /v1/sandboxes/:id/processes/:process_id/signal': { action: 'process.signal', inGuest: true },
  'POST /v1/sandboxes/:id/processes/:process_id/input': 'unrecorded',
  'POST /v1/sandboxes/:id/processes/:process_id/stdin/close': 'unrecorded',
  'POST /v1/sandboxes/:id/processes/:process_id/resize': 'unrecorded',
  'POST /v1/sandboxes/:id/shell': { action: 'sandbox.shell', inGuest: true },
  'POST /v1/sandboxes/:id/shell-ticket': { action: 'sandbox.shell_ticket.create' },
  'GET /v1/sandboxes/:id/shell-ws': { action: 'sandbox.shell', inGuest: true },
  'POST /v1/sandboxes/:id/tunnel/:port': { action: 'sandbox.tunnel', inGuest: true },
  // Its tools are recorded one by one (TOOL_ACTIONS).
  'POST /mcp': 'unrecorded',
  'DELETE /mcp': 'unrecorded',
}

/** Tools of MCP that change something, with the actions of the corresponding routes. */
export const TOOL_ACTIONS: Readonly<Record<string, string | 'unrecorded'>> = {
  create_sandbox: 'sandbox.create',
  pause_sandbox: 'sandbox.pause',
  resume_sandbox: 'sandbox.resume',
  fork_sandbox: 'sandbox.fork',
  destroy_sandbox: 'sandbox.destroy',
  exec: 'sandbox.exec',
  write_file: 'sandbox.file.put',
  start_process: 'process.start',
  stop_process: 'process.delete',
  send_input: 'unrecorded',
}

/** Commands of `warren admin` that change nothing. All others are recorded, as `admin.<command>`. */
export const READING_COMMANDS: ReadonlySet<string> = new Set([
  'user list',
  'user limits',
  'key list',
  'plan',
  'audit',
  'credit ledger',
  'credit verify',
])
