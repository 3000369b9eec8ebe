/**
 * The way in: a small program in a sandbox asked through the ingress, and directly at the sandbox's own address from
 * the same machine. Under emulation the program in the guest is the limit of both, so what the ingress adds shows in the
 * time of a single request rather than in their rate.
 */
import { once } from 'node:events'
import net, { type Socket } from 'node:net'
import { compareTimes, time } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import { loadGenerator } from '../load/generator.ts'
import { parseAnswer } from '../load/slice.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { SMALL, vmBox } from '../vm/box.ts'

const PORT = 8000
const BODY = 'x'.repeat(1_000)
const CONNECTIONS = 16
const SLICE_MS = 500
const WARM_UP_MS = 2_000
const REQUESTS = 20
const DIRECT = "the sandbox's own address"

export const ingressRateRow: Row = {
  name: 'ingress-rate',
  what: `requests through the ingress to a program in a sandbox, ${CONNECTIONS} connections, against asking it directly`,
  unit: 'req/s',
  baseline: DIRECT,
  measure: (run) => withProgram(run, (ours, baseline) => measureRate(run, ours, baseline)),
}

export const ingressTripRow: Row = {
  name: 'ingress-trip',
  what: 'one request after the other on a connection that stays open, against the same without the ingress',
  unit: 'ms',
  baseline: DIRECT,
  measure: (run) => withProgram(run, (ours, baseline) => measureTrips(run, ours, baseline)),
}

/** Where it is asked, and by which name. */
type Place = { host: string; port: number; name: string }

async function withProgram(
  run: Run,
  measure: (ours: Place, baseline: Place) => Promise<Measurement>,
): Promise<Measurement> {
  const { api } = await run.open(vmBox)
  const { id } = await api.create(SMALL, { ingress_enabled: true })
  try {
    await api.post(`/v1/sandboxes/${id}/processes`, {
      cmd: 'perl',
      args: ['-MIO::Socket::INET', '-MIO::Select', '-e', SERVER],
    })
    const { ip, ingress_url_template } = (await api.get(id)) as unknown as { ip: string; ingress_url_template: string }
    const url = new URL(ingress_url_template.replace('<port>', String(PORT)))
    const ours = { host: '127.0.0.1', port: Number(url.port), name: url.host }
    const baseline = { host: ip, port: PORT, name: 'sandbox' }
    await untilAnswered(run, ours)
    return await measure(ours, baseline)
  } finally {
    await api.delete(id)
  }
}

async function measureRate(run: Run, ours: Place, baseline: Place): Promise<Measurement> {
  const load = await run.open(loadGenerator)
  const send = ({ host, port, name }: Place, ms: number) => {
    run.signal.throwIfAborted()
    return load({ url: `http://${host}:${port}/`, headers: { Host: name }, body: BODY, connections: CONNECTIONS, ms })
  }
  for (const place of [ours, baseline]) await send(place, WARM_UP_MS)
  let [ok, failed] = [0, 0]
  const rate = async (place: Place) => {
    const result = await send(place, SLICE_MS)
    ok += result.ok
    failed += result.failed
    return result.ok / (result.elapsedMs / 1000)
  }
  const turns = await interleave(run, { ours: () => rate(ours), baseline: () => rate(baseline) })
  return { ...turns, ok: ok / (ok + failed) }
}

async function measureTrips(run: Run, ours: Place, baseline: Place): Promise<Measurement> {
  const trips = async (place: Place) => {
    const socket = await connect(place)
    const timed = []
    for (let i = 0; i < REQUESTS; i++) timed.push(await time(run, () => ask(socket, place)))
    socket.destroy()
    return timed
  }
  for (const place of [ours, baseline]) await trips(place)
  return compareTimes(
    run,
    () => trips(ours),
    () => trips(baseline),
  )
}

/** Nothing listens until the program has started. */
async function untilAnswered(run: Run, place: Place): Promise<void> {
  for (;;) {
    run.signal.throwIfAborted()
    const socket = await connect(place)
    const isThere = await ask(socket, place).then(
      () => true,
      () => false,
    )
    socket.destroy()
    if (isThere) return
  }
}

async function connect({ host, port }: Place): Promise<Socket> {
  const socket = net.connect({ host, port, noDelay: true })
  await once(socket, 'connect')
  return socket
}

async function ask(socket: Socket, { name }: Place): Promise<void> {
  socket.write(`GET / HTTP/1.1\r\nHost: ${name}\r\n\r\n`)
  let received = Buffer.alloc(0)
  for (;;) {
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    received = Buffer.concat([received, chunk])
    const answer = parseAnswer(received)
    if (answer === undefined) continue
    if (answer.status === 200 && answer.body.toString() === BODY) return
    throw new Error(`the answer was ${answer.status}`)
  }
}

/** One process for all connections, which stay open unless the request says otherwise. */
const SERVER = `
my $server = IO::Socket::INET->new(Listen => 128, ReuseAddr => 1, LocalAddr => "0.0.0.0:${PORT}") or die $!;
my $all = IO::Select->new($server);
my %seen;
my $answer = "HTTP/1.1 200 OK\\r\\nContent-Length: ${BODY.length}\\r\\n\\r\\n" . "x" x ${BODY.length};
while (my @ready = $all->can_read) {
  for my $one (@ready) {
    if ($one == $server) { $all->add($server->accept); next }
    my $n = sysread($one, $seen{$one}, 65536, length($seen{$one} // ''));
    my $last = !$n;
    while (!$last && $seen{$one} =~ s/^(.*?)\\r\\n\\r\\n//s) { $last = 1 if $1 =~ /^connection: close/im; syswrite($one, $answer) }
    next unless $last;
    delete $seen{$one}; $all->remove($one); close $one;
  }
}`
