/** The public client, unmodified, against real VMs. */
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { networkInterfaces, release } from 'node:os'
import { describe, test } from 'node:test'
import { CreateosSandboxNotFoundError, type Sandbox } from '@nodeops-createos/sandbox'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { kill, killServices, runWarren } from './support/instance.ts'
import { requestOk } from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const SHAPE = 's-1vcpu-256mb'
const MIB = 1024 * 1024
/** Generous: an emulated VM on a busy machine is slow. */
const LONG = { timeoutMs: scaleLimit(240_000) }

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())
const sandbox: Sandbox = await startUnlessSkipped(cannotRunVms, () =>
  warren.client.createSandbox({ shape: SHAPE, envs: { GREETING: 'hello' } }),
)

describe('a sandbox in a real VM', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  const sh = async (script: string, where = sandbox) => {
    const { result } = await where.runCommand('sh', ['-c', script], LONG)
    assert.equal(result.exit_code, 0, result.stderr)
    return result.stdout.trim()
  }

  test('runs a separate kernel under its own hostname', async () => {
    assert.equal(sandbox.status, 'running')
    assert.notEqual(await sh('uname -r'), release())
    assert.equal(await sh('hostname'), sandbox.name)
    assert.equal(await sh('echo $GREETING'), 'hello')
    assert.equal(await sh('id -u; pwd; echo $HOME'), '0\n/root\n/root')
  })

  test('reports real exit codes', async () => {
    const code = async (cmd: string, args: string[]) => (await sandbox.runCommand(cmd, args)).result.exit_code

    assert.equal(await code('sh', ['-c', 'exit 7']), 7)
    assert.equal(await code('sh', ['-c', 'kill -9 $$']), 137)
    assert.equal(await code('no-such-command', []), 127)
    assert.equal(await code('/etc/passwd', []), 126)
  })

  test('streams output while the command runs', async () => {
    const seen: string[] = []
    for await (const event of sandbox.streamCommand('sh', ['-c', 'echo one; echo two >&2; sleep 0.2; exit 3'])) {
      seen.push(event.type === 'exit' ? `exit ${event.exitCode}` : event.type)
    }

    assert.deepEqual(seen.slice().sort(), ['exit 3', 'stderr', 'stdout'])
    assert.equal(seen.at(-1), 'exit 3')
  })

  test('a command that uses all memory is killed, and the next one works', async () => {
    const killed = await sandbox.runCommand('sh', ['-c', 'tail /dev/zero; echo $?'])

    assert.equal(killed.result.stdout.trim(), '137')
    assert.equal(await sh('echo alive'), 'alive')
  })

  test('a file of 256 MiB is uploaded and downloaded unchanged', async () => {
    const data = randomBytes(256 * MIB)
    const sum = createHash('sha256').update(data).digest('hex')

    await sandbox.files.upload('/var/tmp/deep/er/big.bin', data, LONG)
    assert.equal((await sh('sha256sum /var/tmp/deep/er/big.bin')).split(' ')[0], sum)
    const back = Buffer.from(await sandbox.files.download('/var/tmp/deep/er/big.bin', LONG))

    assert.equal(createHash('sha256').update(back).digest('hex'), sum)
    await sh('rm /var/tmp/deep/er/big.bin')
  })

  test('an aborted upload leaves no file', async () => {
    const url = new URL(`/v1/sandboxes/${sandbox.id}/files?path=/root/aborted.bin`, warren.instance.baseUrl)
    const upload = request(url, { method: 'PUT', headers: { 'x-api-key': warren.instance.key } })
    upload.on('error', () => {}) // Aborted on purpose.
    upload.write(Buffer.alloc(8 * MIB))
    await once(upload, 'drain')

    upload.destroy()

    // A later upload has passed the place where the abort was noticed.
    await sandbox.files.upload('/root/whole.bin', Buffer.alloc(MIB))
    assert.equal(await sh('ls -A /root | grep -v -e beat -e pid -e "^[.]"'), 'whole.bin')
  })

  test('a command is killed when its caller disconnects', async () => {
    const url = new URL(`/v1/sandboxes/${sandbox.id}/exec`, warren.instance.baseUrl)
    const exec = request(url, { method: 'POST', headers: { 'x-api-key': warren.instance.key } })
    exec.on('error', () => {})
    exec.end(JSON.stringify({ cmd: 'sleep', args: ['54321'] }))
    // The pattern does not match its own command line.
    const running = () => sh('cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n" | grep -c "5432[1]" || true')
    await until(async () => (await running()) !== '0', 'the command runs')

    exec.destroy()

    await until(async () => (await running()) === '0', 'the command has exited', 6_000)
  })

  test('reaches the internet by name, but no port of the host except the API, and no private networks', async () => {
    const source = "grep -rhom1 'http[^ ]*' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1"
    const fetchStatus = (url: string) => sh(`curl -s -o /dev/null -m 5 -w '%{http_code}' ${url} || true`)

    assert.match(await sh(`curl -sL -o /dev/null -m 20 -w '%{http_code}' $(${source})`), /^[234]\d\d$/)
    const secret = createServer((_request, response) => response.end('secret')).listen(0, '0.0.0.0')
    await once(secret, 'listening')
    const { port } = secret.address() as AddressInfo
    const api = new URL(warren.instance.baseUrl)
    const closed = [
      'http://172.30.0.1',
      'http://10.0.0.1',
      `http://127.0.0.1:${api.port}`,
      `http://${api.hostname}:${port}`,
      ...listOwnAddresses().map((address) => `http://${address}:${api.port}`),
      ...listOwnAddresses().map((address) => `http://${address}:${port}`),
    ]
    for (const url of closed) assert.equal(await fetchStatus(url), '000', url)
    assert.equal(await fetchStatus(`${api.origin}/v1/whoami`), '401')
    secret.close()
  })

  test('a program in it uses the base URL that warren env prints, if its egress list allows it', async (t) => {
    const { stdout } = await runWarren(warren.instance.dataDir, 'env')
    const [, baseUrl = ''] = /^WARREN_BASE_URL=(\S+)$/m.exec(stdout) ?? []
    const { hostname, port } = new URL(baseUrl)
    const call = async (egress: string[], path: string, credential: string) => {
      await requestOk(warren, 'PUT', `/sandboxes/${sandbox.id}/egress`, { egress })
      return sh(`curl -s -m 5 -H 'X-Api-Key: ${credential}' ${baseUrl}${path} || echo none`)
    }
    t.after(() => requestOk(warren, 'PUT', `/sandboxes/${sandbox.id}/egress`, { egress: [] }))
    const { token } = (await requestOk(warren, 'POST', `/sandboxes/${sandbox.id}/access-token`)) as { token: string }
    const own = `/v1/sandboxes/${sandbox.id}`
    const { key } = warren.instance

    assert.equal(baseUrl, warren.instance.baseUrl)
    assert.equal((await fetch(`${baseUrl}/v1/whoami`, { headers: { 'x-api-key': key } })).status, 200)
    assert.equal(JSON.parse(await call([], own, token)).data.id, sandbox.id)
    assert.equal(JSON.parse(await call([], '/v1/sandboxes', key)).data.data[0].id, sandbox.id)
    assert.match(await call([], '/v1/sandboxes', token), /a sandbox access token may not do this/)
    assert.match(await call([], own, 'wrong'), /invalid api key/)
    for (const rule of [hostname, `${hostname}:${port}`, `${hostname}/32`]) {
      assert.equal(JSON.parse(await call([rule], own, token)).data.id, sandbox.id, rule)
    }
    for (const rule of ['none', 'example.com', '0.0.0.0/0', `${hostname}:1`]) {
      assert.equal(await call([rule], own, token), 'none', rule)
    }
  })

  test('two sandboxes have different names, addresses, machine ids and random numbers', async () => {
    const other = await warren.client.createSandbox({ shape: SHAPE })
    const facts =
      'cat /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid'

    const [first, second] = [await sh(facts), await sh(facts, other)]

    for (const [i, line] of first.split('\n').entries()) assert.notEqual(line, second.split('\n')[i])
    assert.notEqual(sandbox.ip, other.ip)
    await other.destroy()
    await other.waitUntilDestroyed()
  })

  test('the clock is right, however old its snapshot is', async () => {
    const before = Date.now() / 1000
    const seconds = Number(await sh('date +%s'))
    const after = Date.now() / 1000

    assert.ok(before - 3 < seconds && seconds < after + 3, `${before} ${seconds} ${after}`)
  })

  test('the disk has the requested size', async () => {
    const other = await warren.client.createSandbox({ shape: SHAPE, disk_mib: 20_480 })

    const mib = Number(await sh("df -m / | awk 'NR == 2 { print $2 }'", other))

    assert.ok(mib > 19_000 && mib <= 20_480, `${mib}`)
    await other.destroy()
  })

  test("another user's sandbox is not found, and the plan's limit holds", async () => {
    const eve = warren.clientOf(await warren.createUser('eve', 'free'))

    await assert.rejects(eve.getSandbox(sandbox.id), CreateosSandboxNotFoundError)
    const own = await eve.createSandbox({ shape: SHAPE })
    await assert.rejects(eve.createSandbox({ shape: SHAPE }), /429|cap/i)
    assert.deepEqual(
      (await eve.listSandboxes()).map((one) => one.id),
      [own.id],
    )
    await own.destroy()
  })

  test('twenty concurrent creates with a limit of five give five sandboxes', async () => {
    const key = await warren.createUser('mallory', 'beginner')
    const create = () =>
      fetch(`${warren.instance.baseUrl}/v1/sandboxes`, {
        method: 'POST',
        headers: { 'x-api-key': key },
        body: JSON.stringify({ shape: SHAPE }),
      })

    const statuses = (await Promise.all(Array.from({ length: 20 }, create))).map((response) => response.status)

    assert.deepEqual(statuses.filter((status) => status === 200).length, 5)
    assert.deepEqual(statuses.filter((status) => status === 429).length, 15)
    for (const one of await warren.clientOf(key).listSandboxes()) await one.destroy()
  })

  test('invalid input is rejected with the name of the field', async () => {
    const wrong: [object, string][] = [
      [{}, 'shape'],
      [{ shape: 's-9000vcpu' }, 'shape'],
      [{ shape: SHAPE, rootfs: 'windows:95' }, 'rootfs'],
      [{ shape: SHAPE, rootfs: 'alpine:3.20' }, 'rootfs'],
      [{ shape: SHAPE, name: 'Not A Label' }, 'name'],
      [{ shape: SHAPE, disk_mib: 1 }, 'disk_mib'],
      [{ shape: SHAPE, envs: { '1X': 'y' } }, 'envs'],
      [{ shape: SHAPE, ssh_pubkeys: ['ssh-rsa nonsense'] }, 'ssh_pubkeys'],
      [{ shape: SHAPE, egress: ['host:22'] }, 'egress'],
      [{ shape: SHAPE, auto_pause_after_seconds: 5 }, 'auto_pause_after_seconds'],
    ]
    for (const [body, field] of wrong) {
      const response = await fetch(`${warren.instance.baseUrl}/v1/sandboxes`, {
        method: 'POST',
        headers: { 'x-api-key': warren.instance.key },
        body: JSON.stringify(body),
      })
      const { data } = (await response.json()) as { data: Record<string, string> }
      assert.equal(response.status, 400, JSON.stringify(body))
      assert.ok(field in data, JSON.stringify(data))
    }
  })

  test('keeps running when the host agent and the control plane are killed', async () => {
    await sh("nohup sh -c 'while :; do date +%s%N > /root/beat; sleep 0.2; done' >/dev/null 2>&1 & echo $! > /root/pid")

    await killServices(warren.instance.dataDir)

    await until(
      async () => (await fetch(`${warren.instance.baseUrl}/readyz`).catch(() => undefined))?.ok ?? false,
      'Warren is ready again',
    )
    await until(async () => (await sandbox.runCommand('true').catch(() => undefined)) !== undefined, 'exec works again')
    assert.equal(await sh('test -d /proc/$(cat /root/pid) && echo alive'), 'alive')
    const before = await sh('cat /root/beat')
    await until(async () => (await sh('cat /root/beat')) !== before, 'its process still runs')
  })

  test('when QEMU dies the sandbox is in error with a reason, and can be resumed from its disk', async () => {
    const doomed = await warren.client.createSandbox({ shape: SHAPE, name: 'doomed' })
    await sh('echo still here > /root/note; sync', doomed)

    kill(findQemuPid(warren, doomed.id)!)

    await until(async () => (await doomed.refresh()).status === 'error', 'it is in error', 15_000)
    assert.match(String((doomed.toJSON() as { status_reason?: string }).status_reason), /QEMU process exited/)
    await doomed.resume()
    await doomed.waitUntilRunning({ timeoutMs: scaleLimit(60_000) })
    assert.equal(await sh('cat /root/note', doomed), 'still here')
    await doomed.destroy()
    await doomed.waitUntilDestroyed()
  })

  test('a destroyed sandbox has no process and no record', async () => {
    const qemu = findQemuPid(warren, sandbox.id)!

    await sandbox.destroy()
    await sandbox.waitUntilDestroyed()

    await until(async () => !existsSync(`/proc/${qemu}`), 'its QEMU has exited')
    assert.equal(findQemuPid(warren, sandbox.id), undefined)
    assert.equal((await warren.client.getSandbox(sandbox.id)).status, 'destroyed')
  })
})

/** The addresses of this machine on the networks around it. */
const listOwnAddresses = (): string[] =>
  Object.entries(networkInterfaces())
    .filter(([name]) => name !== 'lo' && !/^w[0-9a-f]{8}\d+$/.test(name))
    .flatMap(([, addresses = []]) => addresses.filter(({ family }) => family === 'IPv4').map(({ address }) => address))
