/** Shells and tunnels into a real VM. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { encodeShellFrame } from '@warren/protocol'
import { processClient } from './support/process-client.ts'
import { createSandbox, requestOk, runShell, untilInGuest } from './support/sandboxes.ts'
import { upgrade as upgradeAt } from './support/upgrade.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())
const sandbox = await startUnlessSkipped(cannotRunVms, () => createSandbox(warren))

/** When a token is rotated, its open streams must be closed within this time (docs/api.md#credentials). */
const REVOKE_LIMIT_MS = 5_000

const ECHO_SERVER = `my $server = IO::Socket::INET->new(Listen => 128, LocalAddr => '127.0.0.1:8098') or die;
while (my $peer = $server->accept) { next if fork; syswrite($peer, $_) while sysread($peer, $_, 65536); exit }`

describe('shells and tunnels', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const processes = processClient(warren, sandbox.id)

  const upgrade = (path: string, early: Uint8Array | string = '', key = warren.instance.key) =>
    upgradeAt(warren, sandbox.id, path, early, key)

  const input = (text: string) => encodeShellFrame({ type: 'input', data: Buffer.from(text) })

  test('a shell is a login shell in a terminal of the requested size', async () => {
    const resize = encodeShellFrame({ type: 'resize', rows: 40, cols: 100 })
    const shell = await upgrade('/shell', Buffer.concat([resize, input('stty size; pwd\n')]))

    assert.equal(shell.status, '101')
    await until(
      () => /40 100\r\n\/root\r\n/.test(shell.body().toString()),
      'the size and the working directory of the shell',
    )
    shell.socket.write(input('exit\n'))
    if (!shell.socket.readableEnded) await once(shell.socket, 'end')
    shell.socket.destroy()
  })

  test('several shells at once are separate', async () => {
    const shells = await Promise.all(['one', 'two', 'three'].map((name) => upgrade('/shell', input(`me=${name}\n`))))

    for (const shell of shells) shell.socket.write(input('echo "I am $me."\n'))

    for (const [at, name] of ['one', 'two', 'three'].entries()) {
      await until(() => shells[at]!.body().includes(`I am ${name}.`), `shell ${name} responds`)
      assert.equal(
        shells[at]!.body()
          .toString()
          .match(/I am \w+\./g)?.length,
        1,
      )
      shells[at]!.socket.destroy()
    }
  })

  test('a browser opens the same shell by WebSocket, with its credential in the query', async () => {
    const url = `${warren.instance.baseUrl.replace('http', 'ws')}/v1/sandboxes/${sandbox.id}/shell-ws?token=${warren.instance.key}`
    const ws = new WebSocket(url)
    ws.binaryType = 'arraybuffer'
    let screen = ''
    ws.addEventListener('message', ({ data }) => {
      screen += Buffer.from(data as ArrayBuffer).toString()
    })
    await once(ws, 'open')

    ws.send(encodeShellFrame({ type: 'resize', rows: 33, cols: 99 }))
    ws.send(input('stty size; exit\n'))

    await until(() => ws.readyState === WebSocket.CLOSED, 'the shell has ended')
    assert.match(screen, /33 99\r\n/)
  })

  test('a tunnel reaches a server on the loopback of the guest; a port without a server is 502', async () => {
    await runShell(warren, sandbox.id, 'printf "from inside" > /root/index.html')
    await processes.start({ cmd: 'busybox', args: ['httpd', '-f', '-p', '127.0.0.1:8099', '-h', '/root'] })
    await waitUntilListens(8099)

    const tunnel = await upgrade('/tunnel/8099', 'GET /index.html HTTP/1.0\r\n\r\n')

    await until(() => tunnel.body().includes('from inside'), 'the page')
    assert.equal((await upgrade('/tunnel/9')).status, '502')
    tunnel.socket.destroy()
  })

  test('bytes sent before the response is read are echoed completely, also after the client has sent its end', async () => {
    await processes.start({ cmd: 'perl', args: ['-MIO::Socket::INET', '-e', ECHO_SERVER] })
    await waitUntilListens(8098)
    const bytes = randomBytes(1024 * 1024)

    const tunnel = await upgrade('/tunnel/8098', bytes)
    tunnel.socket.end()
    if (!tunnel.socket.readableEnded) await once(tunnel.socket, 'end')

    assert.ok(tunnel.body().equals(bytes), `received ${tunnel.body().length} of ${bytes.length} bytes`)
    tunnel.socket.destroy()
  })

  test('rotating a token closes its shells and tunnels; those of the owner stay open', async () => {
    const { token } = await requestOk(warren, 'POST', `/sandboxes/${sandbox.id}/access-token`)
    const ownShell = await upgrade('/shell')
    const tokenStreams = await Promise.all(['/shell', '/tunnel/8098'].map((path) => upgrade(path, '', String(token))))
    assert.deepEqual(
      tokenStreams.map(({ status }) => status),
      ['101', '101'],
    )

    await requestOk(warren, 'POST', `/sandboxes/${sandbox.id}/access-token/rotate`)

    await until(
      () => tokenStreams.every(({ socket }) => socket.destroyed || socket.readableEnded),
      'both are closed',
      REVOKE_LIMIT_MS,
    )
    ownShell.socket.write(input('echo still $((40 + 2))\n'))
    await until(() => ownShell.body().includes('still 42'), 'the shell of the owner responds')
    assert.equal((await upgrade('/shell', '', String(token))).status, '401')
    ownShell.socket.destroy()
  })

  const waitUntilListens = (port: number) => {
    const listening = `grep -qi ":${port.toString(16).padStart(4, '0')} .* 0A " /proc/net/tcp`
    return untilInGuest(warren, sandbox.id, listening)
  }
})
