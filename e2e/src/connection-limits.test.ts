/** Clients that open very many connections and read nothing: limits apply, and other users are not affected. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import net from 'node:net'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getServicePids } from './support/instance.ts'
import { processClient } from './support/process-client.ts'
import { createSandbox, request, requestOk, runShell } from './support/sandboxes.ts'
import { cannotRunVms, SOAK, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())
const busy = await startUnlessSkipped(cannotRunVms, () => createSandbox(warren, { ingress_enabled: true }))
const other = await startUnlessSkipped(cannotRunVms, () => createSandbox(warren))

/** Limits of one sandbox: readers, shells and tunnels together; and connections through the ingress. */
const STREAMS_MAX = 512
const CONNECTIONS_MAX = 1024
const AT_ONCE = 64
/** What a reader that reads nothing may cost each process: the windows of its streams and its buffers. */
const READER_MAX_MIB = 2
const SILENT_PORT = 8097
/** The kernel accepts connections for it; the program itself never does. */
const SILENT_SERVER = `my $server = IO::Socket::INET->new(Listen => 4096, LocalAddr => '0.0.0.0:${SILENT_PORT}') or die;
$| = 1; print "ready"; sleep 100000`

type Opened = { socket: net.Socket; status: number }

describe('limits of one sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, busy.id)

  /** Reads the head of the response and nothing after it. Without `responds` a connection counts as open at once. */
  function open(to: URL, head: string, responds: boolean, localAddress = '127.0.0.1'): Promise<Opened> {
    const socket = net.connect({ host: '127.0.0.1', port: Number(to.port), localAddress })
    socket.on('error', () => {})
    socket.write(`${head}\r\n\r\n`)
    return new Promise((resolve, reject) => {
      socket.once('data', (text) => {
        socket.pause()
        resolve({ socket, status: Number(text.toString('latin1').split(' ')[1]) })
      })
      socket.once('close', () => reject(new Error('closed without a response')))
      if (!responds) socket.once('connect', () => resolve({ socket, status: 0 }))
    })
  }

  async function openMany(count: number, openOne: () => Promise<Opened>): Promise<Opened[]> {
    const opened: Opened[] = []
    while (opened.length < count) {
      opened.push(...(await Promise.all(Array.from({ length: Math.min(AT_ONCE, count - opened.length) }, openOne))))
    }
    return opened
  }

  const api = (line: string, more = '') =>
    open(
      new URL(warren.instance.baseUrl),
      `${line.replace(' ', ` /v1/sandboxes/${busy.id}`)} HTTP/1.1\r\nHost: x\r\nX-Api-Key: ${warren.instance.key}${more}`,
      true,
    )
  const upgrade = '\r\nConnection: Upgrade\r\nUpgrade: tcp-tunnel'
  const close = (all: Opened[]) => {
    for (const { socket } of all) socket.destroy()
  }
  const countOf = (all: Opened[], status: number) => all.filter((one) => one.status === status).length

  async function startSilentServer(): Promise<void> {
    const { process_id } = await processes.start({ cmd: 'perl', args: ['-MIO::Socket::INET', '-e', SILENT_SERVER] })
    await processes.follow(process_id, 0, (text) => text.includes('ready'))
  }

  test('more readers, shells and tunnels than allowed get 429; execs and other sandboxes are served', async () => {
    await startSilentServer()
    const { process_id } = await processes.start({ cmd: 'cat' })
    const readers = await openMany(STREAMS_MAX - 2, () => api(`GET /processes/${process_id}/connect`))
    const others = [await api(`POST /tunnel/${SILENT_PORT}`, upgrade), await api('POST /shell', upgrade)]

    const more = [
      await api(`GET /processes/${process_id}/connect`),
      await api(`POST /tunnel/${SILENT_PORT}`, upgrade),
      await api('POST /shell', upgrade),
    ]

    assert.deepEqual([countOf(readers, 200), countOf(others, 101), countOf(more, 429)], [STREAMS_MAX - 2, 2, 3])
    assert.equal(await runShell(warren, busy.id, 'echo here'), 'here')
    assert.equal(await runShell(warren, other.id, 'echo there'), 'there')
    close([...readers, ...others, ...more])
    await until(async () => {
      const again = await api('POST /shell', upgrade)
      again.socket.destroy()
      return again.status === 101
    }, 'a new shell is accepted again')
  })

  test('more ingress connections than allowed get 503; the sandbox and others are still reached', async () => {
    const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${busy.id}`)
    const url = new URL(String(ingress_url_template).replace('<port>', String(SILENT_PORT)))
    const head = `GET / HTTP/1.1\r\nHost: ${url.host}`
    const countInside = `grep -ci ":${SILENT_PORT.toString(16)} .* 01 " /proc/net/tcp || true`

    // One client address alone may not open as many.
    let opened = 0
    const connections = await openMany(CONNECTIONS_MAX, () => open(url, head, false, `127.0.0.${2 + (opened++ % 4)}`))
    await until(
      async () => Number(await runShell(warren, busy.id, countInside)) === CONNECTIONS_MAX,
      'all connections have reached the guest',
    )
    const oneMore = await open(url, head, true)

    assert.equal(oneMore.status, 503)
    assert.equal(await runShell(warren, other.id, 'echo there'), 'there')
    assert.equal((await request(warren, 'GET', `/sandboxes/${busy.id}/processes`)).status, 200)
    close([...connections, oneMore])
  })

  const readerCount = SOAK ? STREAMS_MAX : 64
  test(`each of ${readerCount} readers that read nothing of a flood costs no more than its windows`, async (t) => {
    const { process_id } = await processes.start({ cmd: 'yes' })
    const before = await readRssMib()

    const readers = await openMany(readerCount, () => api(`GET /processes/${process_id}/connect`))
    const { output } = await processes.get(process_id)
    await until(
      async () => (await processes.get(process_id)).output.newest_seq > output.newest_seq + 256,
      'all of them are far behind',
    )

    const growth = (await readRssMib()).map((mib, at) => (mib - before[at]!) / readerCount)
    t.diagnostic(`MiB per reader: ${growth.map((mib) => mib.toFixed(2))}`)
    for (const mib of growth) assert.ok(mib < READER_MAX_MIB, `a reader costs ${mib} MiB`)
    close(readers)
    await processes.delete(process_id, 0)
  })

  /** The memory of the control plane and of the host agent. */
  async function readRssMib(): Promise<number[]> {
    const pids = await getServicePids(warren.instance.dataDir)
    const statuses = pids.map((pid) => readFileSync(`/proc/${pid}/status`, 'utf8'))
    return statuses.map((status) => Number(/^VmRSS:\s*(\d+)/m.exec(status)![1]) / 1024)
  }
})
