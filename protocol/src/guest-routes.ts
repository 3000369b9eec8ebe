/**
 * The routes of the guest agent and how a stream to each of them behaves. The bodies are described in guest-api.ts,
 * guest-exec.ts, guest-processes.ts and guest-streams.ts.
 */
import { createRouteMatcher } from './route-table.ts'

export type GuestRoute = {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  path: string
  /** The control plane may call it through the host agent. Other routes are for the host agent alone. */
  relayed?: true
  /** Stays open until the caller closes it. The number of such streams per guest is limited separately. */
  staysOpen?: true
  /**
   * Answers only when something is done: an upload, the end of a process, input that a program must read first. The
   * host sets no time limit; the caller has its own. Every other route answers at once, before it has output.
   */
  slowToAnswer?: true
  /**
   * The body says what is wanted. The host waits for its first bytes and sends them together with the request head,
   * because an emulated guest pays for each interrupt. For process input the wait costs more than it saves.
   */
  waitsForBody?: true
}

export const GUEST_ROUTES = {
  getReady: { method: 'GET', path: '/ready' },
  wake: { method: 'POST', path: '/wake' },
  setIdentity: { method: 'POST', path: '/identity', relayed: true },
  setClock: { method: 'POST', path: '/clock' },
  addEntropy: { method: 'POST', path: '/entropy' },
  exec: { method: 'POST', path: '/exec', relayed: true, waitsForBody: true },
  putFile: { method: 'PUT', path: '/files', relayed: true, slowToAnswer: true },
  getFile: { method: 'GET', path: '/files', relayed: true },
  getMetrics: { method: 'GET', path: '/metrics', relayed: true },
  growRootFilesystem: { method: 'POST', path: '/grow', relayed: true },
  sync: { method: 'POST', path: '/sync', relayed: true },
  makeFolder: { method: 'POST', path: '/folders' },
  freeze: { method: 'POST', path: '/freeze' },
  thaw: { method: 'POST', path: '/thaw' },
  pack: { method: 'POST', path: '/pack' },
  powerOff: { method: 'POST', path: '/poweroff' },
  openShell: { method: 'POST', path: '/shell', relayed: true, staysOpen: true },
  openTunnel: { method: 'POST', path: '/tunnel', relayed: true, staysOpen: true },
  listenToSignals: { method: 'GET', path: '/signals', staysOpen: true },
  acknowledgeSignal: { method: 'POST', path: '/signals/ack' },
  setMounts: { method: 'PUT', path: '/mounts', slowToAnswer: true },
  getMounts: { method: 'GET', path: '/mounts' },
  watchMounts: { method: 'GET', path: '/mounts/watch', staysOpen: true },
  flushMounts: { method: 'POST', path: '/mounts/flush', slowToAnswer: true },
  startProcess: { method: 'POST', path: '/processes', relayed: true },
  listProcesses: { method: 'GET', path: '/processes', relayed: true },
  getProcess: { method: 'GET', path: '/processes/:id', relayed: true },
  deleteProcess: { method: 'DELETE', path: '/processes/:id', relayed: true, slowToAnswer: true },
  connectToProcess: { method: 'GET', path: '/processes/:id/connect', relayed: true, staysOpen: true },
  waitForProcess: { method: 'GET', path: '/processes/:id/wait', relayed: true, slowToAnswer: true },
  writeProcessInput: { method: 'POST', path: '/processes/:id/input', relayed: true, slowToAnswer: true },
  closeProcessStdin: { method: 'POST', path: '/processes/:id/stdin/close', relayed: true },
  resizeProcess: { method: 'POST', path: '/processes/:id/resize', relayed: true },
  signalProcess: { method: 'POST', path: '/processes/:id/signal', relayed: true },
} as const satisfies Record<string, GuestRoute>

type RelayedPath = Extract<(typeof GUEST_ROUTES)[keyof typeof GUEST_ROUTES], { relayed: true }>['path']
type FirstSegment<Path extends string> = Path extends `/${infer Segment}/${string}`
  ? Segment
  : Path extends `/${infer Segment}`
    ? Segment
    : never
/** The first path segment of a relayed route. */
export type HostGuestRoute = FirstSegment<RelayedPath>

const match = createRouteMatcher<keyof typeof GUEST_ROUTES>(GUEST_ROUTES)

/** The route that the host agent relays to the guest, or undefined. `path` is without its query. */
export function findRelayedGuestRoute(method: string, path: string): GuestRoute | undefined {
  const found = match(method, path)
  if (!found) return undefined
  const route: GuestRoute = GUEST_ROUTES[found.name]
  return route.relayed ? route : undefined
}
