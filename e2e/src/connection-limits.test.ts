/** Somebody opens more than anybody needs and reads nothing of it: a limit is told, and others notice nothing. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import net from 'node:net'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { findInstanceFile } from './support/instance.ts'
import { processClient } from './support/process-client.ts'
import { createSandbox, request, requestOk, runShell } from './support/sandboxes.ts'
import { cannotRunVms, SOAK, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = cannotRunVms ? (undefined as never) : await startVmInstance()
const crowded = cannotRunVms ? (undefined as never) : await createSandbox(warren, { ingress_enabled: true })
const other = cannotRunVms ? (undefined as never) : await createSandbox(warren)

/** What one sandbox may have open: readers, shells and tunnels together, and connections from outside. */
const STAYING_MAX = 512
const CONNECTIONS_MAX = 1024
const AT_ONCE = 64
/** What a still reader may cost each part: the windows of its streams and what lies in its buffers. */
const READER_MAX_MIB = 2
const DEAF_PORT = 8097
/** The kernel takes them in for a program that never looks. */
const DEAF_SERVER = `my $server = IO::Socket::INET->new(Listen => 4096, LocalAddr => '0.0.0.0:${DEAF_PORT}') or die;
$| = 1; print "ready"; sleep 100000`

type Opened = { socket: net.Socket; status: number }

describe('a crowd', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, crowded?.id)

  /** Reads the head of the answer and from then on nothing. No answer counts as open when nothing ever answers. */
  function open(to: URL, head: string, answers: boolean, localAddress = '127.0.0.1'): Promise<Opened> {
    const socket = net.connect({ host: '127.0.0.1', port: Number(to.port), localAddress })
    socket.on('error', () => {})
    socket.write(`${head}\r\n\r\n`)
    return new Promise((resolve, reject) => {
      socket.once('data', (text) => {
        socket.pause()
        resolve({ socket, status: Number(text.toString('latin1').split(' ')[1]) })
      })
      socket.once('close', () => reject(new Error('closed without an answer')))
      if (!answers) socket.once('connect', () => resolve({ socket, status: 0 }))
    })
  }

  async function openMany(count: number, one: () => Promise<Opened>): Promise<Opened[]> {
    const opened: Opened[] = []
    while (opened.length < count) {
      opened.push(...(await Promise.all(Array.from({ length: Math.min(AT_ONCE, count - opened.length) }, one))))
    }
    return opened
  }

  const api = (line: string, more = '') =>
    open(
      new URL(warren.instance.baseUrl),
      `${line.replace(' ', ` /v1/sandboxes/${crowded.id}`)} HTTP/1.1\r\nHost: x\r\nX-Api-Key: ${warren.instance.key}${more}`,
      true,
    )
  const upgrade = '\r\nConnection: Upgrade\r\nUpgrade: tcp-tunnel'
  const close = (all: Opened[]) => {
    for (const { socket } of all) socket.destroy()
  }
  const countOf = (all: Opened[], status: number) => all.filter((one) => one.status === status).length

  async function listenDeaf(): Promise<void> {
    const { process_id } = await processes.start({ cmd: 'perl', args: ['-MIO::Socket::INET', '-e', DEAF_SERVER] })
    await processes.follow(process_id, 0, (text) => text.includes('ready'))
  }

  test('of readers, shells and tunnels: the last are told to wait, execs and others are not', async () => {
    await listenDeaf()
    const { process_id } = await processes.start({ cmd: 'cat' })
    const readers = await openMany(STAYING_MAX - 2, () => api(`GET /processes/${process_id}/connect`))
    const two = [await api(`POST /tunnel/${DEAF_PORT}`, upgrade), await api('POST /shell', upgrade)]

    const more = [
      await api(`GET /processes/${process_id}/connect`),
      await api(`POST /tunnel/${DEAF_PORT}`, upgrade),
      await api('POST /shell', upgrade),
    ]

    assert.deepEqual([countOf(readers, 200), countOf(two, 101), countOf(more, 429)], [STAYING_MAX - 2, 2, 3])
    assert.equal(await runShell(warren, crowded.id, 'echo here'), 'here')
    assert.equal(await runShell(warren, other.id, 'echo there'), 'there')
    close([...readers, ...two, ...more])
    await until(async () => {
      const again = await api('POST /shell', upgrade)
      again.socket.destroy()
      return again.status === 101
    }, 'there is room again')
  })

  test('of visitors from outside: the last are turned away, the sandbox and others are reached', async () => {
    const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${crowded.id}`)
    const url = new URL(String(ingress_url_template).replace('<port>', String(DEAF_PORT)))
    const head = `GET / HTTP/1.1\r\nHost: ${url.host}`
    const inside = `grep -ci ":${DEAF_PORT.toString(16)} .* 01 " /proc/net/tcp || true`

    // One address alone may not come as often.
    let came = 0
    const visitors = await openMany(CONNECTIONS_MAX, () => open(url, head, false, `127.0.0.${2 + (came++ % 4)}`))
    await until(async () => Number(await runShell(warren, crowded.id, inside)) === CONNECTIONS_MAX, 'all are inside')
    const oneMore = await open(url, head, true)

    assert.equal(oneMore.status, 503)
    assert.equal(await runShell(warren, other.id, 'echo there'), 'there')
    assert.equal((await request(warren, 'GET', `/sandboxes/${crowded.id}/processes`)).status, 200)
    close([...visitors, oneMore])
  })

  const crowd = SOAK ? STAYING_MAX : 64
  test(`of ${crowd} who read nothing of a flood: each costs what fits into its windows`, async (t) => {
    const { process_id } = await processes.start({ cmd: 'yes' })
    const before = await rssMib()

    const readers = await openMany(crowd, () => api(`GET /processes/${process_id}/connect`))
    const { output } = await processes.get(process_id)
    await until(
      async () => (await processes.get(process_id)).output.newest_seq > output.newest_seq + 256,
      'all of them are far behind',
    )

    const growth = (await rssMib()).map((mib, at) => (mib - before[at]!) / crowd)
    t.diagnostic(`MiB a reader: ${growth.map((mib) => mib.toFixed(2))}`)
    for (const mib of growth) assert.ok(mib < READER_MAX_MIB, `a reader costs ${mib} MiB`)
    close(readers)
    await processes.delete(process_id, 0)
  })

  /** Of the control plane and the host agent. */
  async function rssMib(): Promise<number[]> {
    const { children } = (await findInstanceFile(warren.instance.dataDir))!
    const statuses = children.map(({ pid }) => readFileSync(`/proc/${pid}/status`, 'utf8'))
    return statuses.map((status) => Number(/^VmRSS:\s*(\d+)/m.exec(status)![1]) / 1024)
  }
})
