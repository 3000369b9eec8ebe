/** `warren tunnel` and `warren ssh` over HTTPS, with a certificate authority from NODE_EXTRA_CA_CERTS. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { buffer } from 'node:stream/consumers'
import { after, describe, test } from 'node:test'
import { spawnWarren, waitForExit } from './support/instance.ts'
import { createSandbox, requestOk, untilInGuest } from './support/sandboxes.ts'
import { startTlsProxy } from './support/tls-proxy.ts'
import {
  cannotRunVms,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const IMAGE = 'devbox:1'
const missing = ['openssl', 'ssh', 'ssh-keygen'].find((tool) => spawnSync('which', [tool]).status !== 0)
const skip = cannotRunVms || (missing ? `${missing} is not installed` : false) || (await skipWithoutImage(IMAGE))

const warren = await startUnlessSkipped(skip, () => startVmInstance())
const folder = await mkdtemp(path.join(tmpdir(), 'warren-tls-'))
after(() => rm(folder, { recursive: true }))
const key = path.join(folder, 'id')
if (!skip) spawnSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', key])
const sandbox = await startUnlessSkipped(skip, async () =>
  createSandbox(warren, {
    rootfs: IMAGE,
    shape: 's-1vcpu-1gb',
    ssh_pubkeys: [(await readFile(`${key}.pub`, 'utf8')).trim()],
  }),
)

const ECHO_PORT = 8098
const ECHO_SERVER = `import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while (some := self.request.recv(65536)): self.request.sendall(some)
socketserver.ThreadingTCPServer(("127.0.0.1", ${ECHO_PORT}), Echo).serve_forever()`

describe('over HTTPS', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  /** Addresses of this machine, and their form in a URL. */
  const addresses = [
    ['127.0.0.1', 'localhost'],
    ['127.0.0.1', '127.0.0.1'],
    ['::1', '[::1]'],
  ] as const

  async function startProxyAndRenderEnv(address: string, name: string, prefix = ''): Promise<Record<string, string>> {
    const proxy = await startTlsProxy(folder, address, warren.instance.baseUrl)
    after(() => proxy.close())
    return {
      WARREN_BASE_URL: `https://${name}:${proxy.port}${prefix}`,
      WARREN_API_KEY: warren.instance.key,
      NODE_EXTRA_CA_CERTS: proxy.caFile,
    }
  }

  for (const [address, name] of addresses) {
    test(`a tunnel by https://${name} carries bytes in both directions, each until its end`, async () => {
      await startEcho()
      const bytes = randomBytes(1024 * 1024)
      const tunnel = spawnWarren(
        warren.instance.dataDir,
        ['tunnel', sandbox.name, String(ECHO_PORT)],
        await startProxyAndRenderEnv(address, name),
      )
      const errors = buffer(tunnel.stderr)

      tunnel.stdin.end(bytes)
      const [echo, [code]] = await Promise.all([buffer(tunnel.stdout), once(tunnel, 'close')])

      assert.deepEqual([code, (await errors).toString()], [0, ''])
      assert.ok(echo.equals(bytes), `received ${echo.length} of ${bytes.length} bytes`)
    })
  }

  test('warren ssh works over HTTPS', async () => {
    const settings = ['-F', 'none', '-i', key, '-o', 'IdentitiesOnly=yes', '-o', 'BatchMode=yes']
    const args = ['ssh', sandbox.name, ...settings, 'hostname; exit 7']

    const { code, stdout, stderr } = await waitForExit(
      spawnWarren(warren.instance.dataDir, args, await startProxyAndRenderEnv('127.0.0.1', 'localhost')),
    )

    assert.deepEqual([code, stdout, stderr], [7, `${sandbox.name}\n`, ''])
  })

  test('an unknown certificate authority is rejected with a clear message', async () => {
    const { NODE_EXTRA_CA_CERTS, ...env } = await startProxyAndRenderEnv('127.0.0.1', 'localhost')
    for (const target of [sandbox.name, sandbox.id]) {
      const { code, stdout, stderr } = await waitForExit(
        spawnWarren(warren.instance.dataDir, ['tunnel', target, '22'], env),
      )

      assert.deepEqual([code, stdout], [1, ''])
      assert.match(stderr, /^warren: cannot reach https:\/\/localhost:\d+: .*certificate.*\n$/)
    }
  })

  let echoIsRunning = false
  async function startEcho(): Promise<void> {
    if (echoIsRunning) return
    await requestOk(warren, 'POST', `/sandboxes/${sandbox.id}/processes`, { cmd: 'python3', args: ['-c', ECHO_SERVER] })
    await untilInGuest(warren, sandbox.id, `nc -z 127.0.0.1 ${ECHO_PORT}`)
    echoIsRunning = true
  }
})
