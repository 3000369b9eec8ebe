/**
 * Requests to a small server in a sandbox, through the ingress and directly to the sandbox's address. Under emulation
 * the server in the guest limits both, so the cost of the ingress shows in the time of a single request rather than in
 * the rate.
 */
import { once } from 'node:events'
import net, { type Socket } from 'node:net'
import { compareTimes, type Timed, time, turnOf } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import { loadGenerator } from '../load/generator.ts'
import { parseResponse, type SliceResult } from '../load/slice.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { instance, SMALL } from '../vm/instance.ts'

const PORT = 8000
export const BODY = 'x'.repeat(1_000)
const CONNECTIONS = 16
const SLICE_MS = 500
const WARM_UP_MS = 2_000
const REQUESTS = 20
const DIRECT = "the sandbox's own address"

export const ingressRateRow: Row = {
  name: 'ingress-rate',
  what: `requests through the ingress to a server in a sandbox, ${CONNECTIONS} connections, against direct requests`,
  unit: 'req/s',
  baseline: DIRECT,
  measure: (run) => withServer(run, (ours, baseline) => measureRate(run, ours, baseline)),
  comparison: {
    async open(run, api) {
      const { id, ingress } = await createServer(run, api)
      await sendLoad(run, ingress, WARM_UP_MS)
      return {
        async takeTurn() {
          const result = await sendLoad(run, ingress, SLICE_MS)
          return { samples: [rateOf(result)], failed: result.failed }
        },
        close: () => api.delete(id),
      }
    },
  },
}

export const ingressTripRow: Row = {
  name: 'ingress-trip',
  what: 'one request after the other on a connection that stays open, against the same without the ingress',
  unit: 'ms',
  baseline: DIRECT,
  measure: (run) => withServer(run, (ours, baseline) => measureTrips(run, ours, baseline)),
  comparison: {
    async open(run, api) {
      const { id, ingress } = await createServer(run, api)
      await requestMany(run, ingress)
      return {
        takeTurn: async () => turnOf(await requestMany(run, ingress)),
        close: () => api.delete(id),
      }
    },
  },
}

/** Where requests are sent, and their Host header. */
export type Target = { host: string; port: number; name: string }

async function withServer(
  run: Run,
  measure: (ours: Target, baseline: Target) => Promise<Measurement>,
): Promise<Measurement> {
  const { api } = await run.open(instance)
  const { id, ingress, direct } = await createServer(run, api)
  try {
    return await measure(ingress, direct)
  } finally {
    await api.delete(id)
  }
}

/** A sandbox whose server responds through the ingress. */
async function createServer(run: Run, api: Api): Promise<Server> {
  const { id } = await api.create(SMALL, { ingress_enabled: true })
  return startServer(run, api, id)
}

export type Server = { id: string; ingress: Target; direct: Target }

/** Settles when the server in the sandbox responds through the ingress. */
export async function startServer(run: Run, api: Api, id: string): Promise<Server> {
  await api.post(`/v1/sandboxes/${id}/processes`, {
    cmd: 'perl',
    args: ['-MIO::Socket::INET', '-MIO::Select', '-e', SERVER],
  })
  const { ip, ingress_url_template } = (await api.get(id)) as unknown as { ip: string; ingress_url_template: string }
  const url = new URL(ingress_url_template.replace('<port>', String(PORT)))
  const ingress = { host: '127.0.0.1', port: Number(url.port), name: url.host }
  await waitUntilServed(run, ingress)
  return { id, ingress, direct: { host: ip, port: PORT, name: 'sandbox' } }
}

export async function measureRate(run: Run, ours: Target, baseline: Target): Promise<Measurement> {
  for (const target of [ours, baseline]) await sendLoad(run, target, WARM_UP_MS)
  let [ok, failed] = [0, 0]
  const measureSlice = async (target: Target) => {
    const result = await sendLoad(run, target, SLICE_MS)
    ok += result.ok
    failed += result.failed
    return rateOf(result)
  }
  const turns = await interleave(run, { ours: () => measureSlice(ours), baseline: () => measureSlice(baseline) })
  return { ...turns, ok: ok / (ok + failed) }
}

async function sendLoad(run: Run, { host, port, name }: Target, ms: number): Promise<SliceResult> {
  const load = await run.open(loadGenerator)
  return load({ url: `http://${host}:${port}/`, headers: { Host: name }, body: BODY, connections: CONNECTIONS, ms })
}

const rateOf = ({ ok, elapsedMs }: SliceResult): number => ok / (elapsedMs / 1000)

export async function measureTrips(run: Run, ours: Target, baseline: Target): Promise<Measurement> {
  for (const target of [ours, baseline]) await requestMany(run, target)
  return compareTimes(
    run,
    () => requestMany(run, ours),
    () => requestMany(run, baseline),
  )
}

async function requestMany(run: Run, target: Target): Promise<Timed[]> {
  const socket = await connect(target)
  const timed = []
  for (let i = 0; i < REQUESTS; i++) timed.push(await time(run, () => request(socket, target)))
  socket.destroy()
  return timed
}

/** Requests fail until the server in the guest listens. */
export async function waitUntilServed(run: Run, target: Target): Promise<void> {
  for (;;) {
    run.signal.throwIfAborted()
    const socket = await connect(target)
    const isServed = await request(socket, target).then(
      () => true,
      () => false,
    )
    socket.destroy()
    if (isServed) return
  }
}

async function connect({ host, port }: Target): Promise<Socket> {
  const socket = net.connect({ host, port, noDelay: true })
  await once(socket, 'connect')
  return socket
}

async function request(socket: Socket, { name }: Target): Promise<void> {
  socket.write(`GET / HTTP/1.1\r\nHost: ${name}\r\n\r\n`)
  let received = Buffer.alloc(0)
  for (;;) {
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    received = Buffer.concat([received, chunk])
    const response = parseResponse(received)
    if (response === undefined) continue
    if (response.status === 200 && response.body.toString() === BODY) return
    throw new Error(`the response was ${response.status}`)
  }
}

/** One process for all connections, which stay open unless the request says otherwise. */
const SERVER = `
my $server = IO::Socket::INET->new(Listen => 128, ReuseAddr => 1, LocalAddr => "0.0.0.0:${PORT}") or die $!;
my $all = IO::Select->new($server);
my %received;
my $response = "HTTP/1.1 200 OK\\r\\nContent-Length: ${BODY.length}\\r\\n\\r\\n" . "x" x ${BODY.length};
while (my @ready = $all->can_read) {
  for my $peer (@ready) {
    if ($peer == $server) { $all->add($server->accept); next }
    my $n = sysread($peer, $received{$peer}, 65536, length($received{$peer} // ''));
    my $last = !$n;
    while (!$last && $received{$peer} =~ s/^(.*?)\\r\\n\\r\\n//s) { $last = 1 if $1 =~ /^connection: close/im; syswrite($peer, $response) }
    next unless $last;
    delete $received{$peer}; $all->remove($peer); close $peer;
  }
}`
