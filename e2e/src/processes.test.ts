/** Processes, shells and tunnels in a real virtual machine, through every part between a client and a program. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { describe, test } from 'node:test'
import type { Sandbox } from '@nodeops-createos/sandbox'
import { encodeShellFrame, type ProcessFrame, type ProcessView, readNdjson } from '@warren/protocol'
import { until } from './box.ts'
import { cannotRunVms, startVmBox } from './vm-box.ts'

const it = cannotRunVms ? (undefined as never) : await startVmBox()
const sandbox: Sandbox = cannotRunVms
  ? (undefined as never)
  : await it.client.createSandbox({ shape: 's-1vcpu-256mb', envs: { GREETING: 'hello' } })

describe('processes in a real virtual machine', { skip: cannotRunVms }, () => {
  const base = () => `${it.box.baseUrl}/v1/sandboxes/${sandbox.id}`
  const headers = () => ({ 'x-api-key': it.box.key })

  async function ask<Data>(method: string, path: string, body?: object): Promise<Data> {
    const payload = body === undefined ? {} : { body: JSON.stringify(body) }
    const response = await fetch(`${base()}${path}`, { method, headers: headers(), ...payload })
    const answer = (await response.json()) as { status: string; data: Data }
    assert.equal(answer.status, 'success', `${method} ${path}: ${JSON.stringify(answer)}`)
    return answer.data
  }
  const start = (body: object) => ask<ProcessView>('POST', '/processes', body)
  const write = (id: string, bytes: Buffer | string) =>
    ask('POST', `/processes/${id}/input`, { data_base64: Buffer.from(bytes).toString('base64') })

  /** Until `enough` says so of what has come, or the end; numbers must have no gap. */
  async function follow(id: string, after: number, enough: (text: string) => boolean = () => false) {
    const response = await fetch(`${base()}/processes/${id}/connect?after=${after}`, { headers: headers() })
    const chunks: Buffer[] = []
    let seq = after
    for await (const value of readNdjson(response.body!)) {
      const frame = value as ProcessFrame
      if (frame.type === 'exit' || frame.type === 'error') return { seq, bytes: Buffer.concat(chunks), end: frame }
      if (frame.type !== 'data') continue
      if (seq !== 0) assert.equal(frame.seq, seq + 1)
      seq = frame.seq
      chunks.push(Buffer.from(frame.data_base64, 'base64'))
      if (enough(Buffer.concat(chunks).toString())) break
    }
    return { seq, bytes: Buffer.concat(chunks), end: undefined }
  }

  /** An upgraded connection, its head read. */
  async function upgrade(path: string, early: Buffer | string = '') {
    const { hostname, port } = new URL(it.box.baseUrl)
    const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true })
    socket.on('error', () => {})
    let received = ''
    socket.on('data', (chunk) => {
      received += chunk.toString('latin1')
    })
    const head = `POST /v1/sandboxes/${sandbox.id}${path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: ${it.box.key}\r\n`
    socket.write(
      Buffer.concat([Buffer.from(`${head}Connection: Upgrade\r\nUpgrade: tcp-tunnel\r\n\r\n`), Buffer.from(early)]),
    )
    await until(() => received.includes('\r\n\r\n'), 'the head of the answer')
    return {
      socket,
      status: received.split(' ')[1],
      body: () => received.slice(received.indexOf('\r\n\r\n') + 4),
    }
  }

  test('every byte goes in and comes out', async () => {
    const { process_id } = await start({ cmd: 'cat' })
    const all = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))

    await write(process_id, all)
    await ask('POST', `/processes/${process_id}/stdin/close`)

    const { bytes, end } = await follow(process_id, 0)
    assert.deepEqual(bytes, all)
    assert.deepEqual(end, { type: 'exit', exit_code: 0 })
  })

  test('a terminal knows its size, and the environment of the sandbox', async () => {
    const { process_id } = await start({ cmd: 'sh', pty: {} })

    await ask('POST', `/processes/${process_id}/resize`, { rows: 50, cols: 132 })
    await write(process_id, 'stty size; echo $GREETING; exit 3\n')

    const { bytes, end } = await follow(process_id, 0)
    assert.match(bytes.toString(), /50 132\r\nhello/)
    assert.deepEqual(end, { type: 'exit', exit_code: 3 })
  })

  test('a daemon that forked away is found and ended with its process', async () => {
    const script = 'setsid sh -c "sleep 1000 & echo \\$!" < /dev/null; exit 0'
    const { process_id } = await start({ cmd: 'sh', args: ['-c', script] })
    await ask('GET', `/processes/${process_id}/wait`)
    const daemon = (await follow(process_id, 0)).bytes.toString().trim()
    const before = await ask<ProcessView>('GET', `/processes/${process_id}`)

    const ended = await ask<ProcessView>('DELETE', `/processes/${process_id}?grace_ms=100`)

    assert.deepEqual([before.leader_exited, before.tree_exited], [true, false])
    assert.deepEqual([ended.tree_exited, ended.exit_code], [true, 0])
    const { result } = await sandbox.runCommand('sh', [
      '-c',
      `kill -0 ${daemon} 2>/dev/null && echo alive || echo gone`,
    ])
    assert.equal(result.stdout.trim(), 'gone')
  })

  test('a count goes on through pause and resume, and none of it is lost', async () => {
    const { process_id } = await start({
      cmd: 'sh',
      args: ['-c', 'n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done'],
    })
    const first = await follow(process_id, 0, (text) => text.includes('5\n'))

    await sandbox.pause()
    await sandbox.waitUntilPaused()
    await sandbox.resume()
    await sandbox.waitUntilRunning()
    const rest = await follow(process_id, first.seq, (text) => text.split('\n').length > 10)

    const numbers = `${first.bytes}${rest.bytes}`.trim().split('\n').map(Number)
    assert.deepEqual(
      numbers,
      numbers.map((_, index) => index + 1),
    )
    const { exit_code, signal } = await ask<ProcessView>('DELETE', `/processes/${process_id}`)
    assert.deepEqual([exit_code, signal], [null, 'SIGTERM'])
  })

  test('a shell is a login terminal', async () => {
    const input = (text: string) => encodeShellFrame({ type: 'input', data: Buffer.from(text) })
    const resize = encodeShellFrame({ type: 'resize', rows: 40, cols: 100 })
    const shell = await upgrade('/shell', Buffer.concat([resize, input('stty size; pwd\n')]))

    assert.equal(shell.status, '101')
    await until(() => /40 100\r\n\/root\r\n/.test(shell.body()), 'the size and the place of the shell')
    shell.socket.write(input('exit\n'))
    if (!shell.socket.readableEnded) await once(shell.socket, 'end')
    shell.socket.destroy()
  })

  test('a tunnel reaches what listens on loopback inside; a port where nothing does is 502', async () => {
    await sandbox.files.upload('/root/index.html', Buffer.from('from inside'))
    const script =
      'busybox httpd -f -p 127.0.0.1:8099 -h /root 2>/dev/null || exec python3 -m http.server -b 127.0.0.1 8099 -d /root'
    const { process_id } = await start({ cmd: 'sh', args: ['-c', script] })
    const get = 'GET /index.html HTTP/1.0\r\n\r\n'
    let tunnel = await upgrade('/tunnel/8099', get)
    for (; tunnel.status === '502'; tunnel = await upgrade('/tunnel/8099', get)) {
      const { state } = await ask<ProcessView>('GET', `/processes/${process_id}`)
      assert.equal(state, 'running', 'the server in the guest has ended')
    }

    await until(() => tunnel.body().includes('from inside'), 'the page')

    assert.equal((await upgrade('/tunnel/9')).status, '502')
    await ask('DELETE', `/processes/${process_id}?grace_ms=0`)
    tunnel.socket.destroy()
  })
})
