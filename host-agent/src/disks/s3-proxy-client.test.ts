/** The process of the S3 proxy: what it may do, what it knows, how it is replaced, and how it reaches servers by https. */
import assert from 'node:assert/strict'
import { ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, type TestContext, test } from 'node:test'
import { issueAuthority, issueServer, newKeys } from '@warren/kit/http-proxy/issue-certificate'
import { startS3Server } from '@warren/kit/testing/s3-server'
import { until } from '@warren/kit/testing/until'
import { S3Proxy } from './s3-proxy-client.ts'
import { startS3Proxy } from './s3-proxy-jail.ts'
import { readS3ProxyMachine } from './s3-proxy-machine.ts'
import type { MountAnswer, S3ProxySettings } from './s3-proxy-protocol.ts'
import { addGuest, describeMount, openTestProxy, S3_PROXY_UID } from './testing/proxy.ts'

const DOMAIN = 's3.localhost'
const folder = mkdtempSync(path.join(tmpdir(), 's3-proxy-'))
after(() => rmSync(folder, { recursive: true }))
const [authorityKeys, serverKeys] = [newKeys(), newKeys()]
const authority = { name: 'S3 test', key: authorityKeys.privateKey, publicKey: authorityKeys.publicKey }
const [caFile, certFile, keyFile] = ['ca.pem', 'cert.pem', 'key.pem'].map((name) => path.join(folder, name)) as [
  string,
  string,
  string,
]
writeFileSync(caFile, issueAuthority(authority, DOMAIN, 2))
writeFileSync(certFile, issueServer(authority, serverKeys.publicKey, [DOMAIN, `*.${DOMAIN}`], 2))
writeFileSync(keyFile, serverKeys.privateKey.export({ type: 'pkcs8', format: 'pem' }))

const { proxy, warnings } = await openTestProxy({ after })
const server = await startS3Server({ after }, 'versitygw')
await server.createBucket('media')
const guest = await addGuest(proxy, server)
const put = { headers: { 'content-md5': createHash('md5').update('x').digest('base64') }, body: 'x' }

test('the process has no root privileges', { skip: process.getuid?.() !== 0 && 'needs root' }, () => {
  const status = readFileSync(`/proc/${proxy.pid}/status`, 'utf8')

  assert.match(status, new RegExp(`^Uid:(\\t${S3_PROXY_UID}){4}$`, 'm'))
  assert.match(status, new RegExp(`^Gid:(\\t${S3_PROXY_UID}){4}$`, 'm'))
  assert.match(status, /^Groups:\s*$/m)
  assert.match(status, /^CapEff:\t0+$/m)
  assert.match(status, /^CapPrm:\t0+$/m)
})

test('credentials are not in its arguments or its environment', () => {
  const visible = ['cmdline', 'environ'].map((name) => readFileSync(`/proc/${proxy.pid}/${name}`, 'utf8')).join('')

  assert.ok(!visible.includes(server.credentials.secretKey) && !visible.includes(server.credentials.accessKey))
})

test('a proxy that is killed is replaced by one with the same mounts at the same port', async () => {
  await guest.request('PUT', '/key', put)
  const [oldPid, oldPort] = [proxy.pid!, proxy.port]

  process.kill(oldPid, 'SIGKILL')
  await until(() => proxy.pid !== undefined && proxy.pid !== oldPid)

  assert.equal(proxy.port, oldPort)
  assert.equal((await guest.request('GET', '/key')).text, 'x')
  assert.equal((await proxy.counts())?.mounts, 1)
  assert.match(JSON.stringify(warnings), /died and is restarted/)
  assert.ok(!JSON.stringify(warnings).includes(server.credentials.secretKey))
})

test('a request that is sent while the proxy is dead reaches the next one', async () => {
  process.kill(proxy.pid!, 'SIGKILL')

  await proxy.setMounts([{ ...guest.mount, readOnly: true }])

  assert.equal((await guest.request('PUT', '/key', put)).code, 'ReadOnly')
  await proxy.setMounts([guest.mount])
  assert.equal((await guest.request('PUT', '/key', put)).status, 200)
})

test('a mount that is not valid is refused without its secret, and changes nothing', async () => {
  const secretKey = 'a-secret-that-must-not-be-quoted'
  const { mount } = describeMount(server, { credentials: { accessKey: 'a', secretKey } })
  const invalid = [
    { ...mount, bucket: 'a/b' },
    { ...mount, endpoint: 'ftp://x' },
    { ...mount, subPath: 'a/../b' },
    { ...mount, subPath: '/a' },
    { ...mount, tokenHash: 'x' },
    { ...mount, credentials: { accessKey: '', secretKey } },
  ]

  for (const one of invalid) {
    const changed = { ...guest.mount, readOnly: true }
    await assert.rejects(proxy.setMounts([changed, one]), (error: Error) => !error.message.includes(secretKey))
  }
  assert.equal((await guest.request('PUT', '/key', put)).status, 200)
  assert.equal((await proxy.counts())?.mounts, 1)
})

test('an address that is taken is an error with its code', async () => {
  await assert.rejects(openTestProxy({ after }, { port: proxy.port }), { code: 'EADDRINUSE' })
})

for (const usePathStyle of [false, true]) {
  test(`a bucket is reached by https with ${usePathStyle ? 'path-style' : 'virtual-host'} addressing`, async (t) => {
    const secure = await startS3Server(t, 'versitygw', {
      tls: { certFile, keyFile },
      ...(usePathStyle ? {} : { domain: DOMAIN }),
    })
    await secure.createBucket('media')
    process.env.NODE_EXTRA_CA_CERTS = caFile
    const { proxy: trusting } = await openTestProxy(t)
    delete process.env.NODE_EXTRA_CA_CERTS
    const endpoint = `https://${DOMAIN}:${secure.port}`
    const { credentials } = secure
    const [trusted, untrusted] = [
      await addGuest(trusting, { endpoint, credentials }, { usePathStyle }),
      await addGuest(proxy, { endpoint, credentials }, { usePathStyle }),
    ]

    const written = await trusted.request('PUT', '/key', put)
    const refused = await untrusted.request('GET', '/key')

    assert.equal(written.status, 200, written.text)
    assert.deepEqual(await secure.listKeys('media'), ['key'])
    assert.deepEqual([refused.status, refused.code], [502, 'UpstreamUnreachable'])
    assert.match(refused.text, /certificate/)
    await proxy.removeMounts([untrusted.mount.id])
  })
}

test('the process ends some time after the last mount, and the next mount starts it again at the same port', async (t) => {
  const { proxy: idle } = await openTestProxy(t, {}, { idleMs: 50 })
  const { port } = idle
  await until(() => idle.pid === undefined, 'the process without a mount ends')

  const other = await addGuest(idle, server)
  assert.equal((await other.request('GET', '/key')).text, 'x')
  assert.equal(idle.port, port)
  assert.notEqual(idle.pid, undefined)
  await idle.removeMounts([other.mount.id])
  await until(() => idle.pid === undefined, 'the process ends')
  assert.equal(await idle.counts(), undefined)
})

/** Its first process works, and those that follow start when the test allows it. */
async function openHeldProxy(t: TestContext, requestLimitMs?: number) {
  const held = Promise.withResolvers<void>()
  let readings = 0
  const readMachine = async () => {
    if (readings++ > 0) await held.promise
    return readS3ProxyMachine()
  }
  const { proxy: replaced } = await openTestProxy(t, {}, { readMachine, ...(requestLimitMs && { requestLimitMs }) })
  process.kill(replaced.pid!, 'SIGKILL')
  await until(() => replaced.pid === undefined)
  return { replaced, release: held.resolve }
}

test('mounts that were given up while no process ran are not sent to the next one', async (t) => {
  const { replaced, release } = await openHeldProxy(t, 50)

  await assert.rejects(
    replaced.setMounts([describeMount(server).mount]),
    /to reach the S3 proxy for setMounts took more/,
  )
  release()

  await until(() => replaced.pid !== undefined)
  assert.equal((await replaced.counts())!.mounts, 0)
})

test('mounts that were removed while no process ran are not sent to the next one', async (t) => {
  const { replaced, release } = await openHeldProxy(t)
  const [kept, removed] = [describeMount(server).mount, describeMount(server).mount]

  const set = replaced.setMounts([kept, removed])
  await replaced.removeMounts([removed.id])
  release()
  await set

  assert.equal((await replaced.counts())!.mounts, 1)
  process.kill(replaced.pid!, 'SIGKILL')
  await until(async () => (await replaced.counts().catch(() => undefined))?.mounts === 1, 'the next one has it as well')
})

test('a process that sends what the protocol does not contain is killed, and the next one takes its place', async (t) => {
  const messages = '{"ready":true}\\n{"evil":1}\\n'
  const script = `new (require('net').Socket)({ fd: 3 }).write('${messages}'); setInterval(() => {}, 1e3)`
  const evil = () => spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'ignore', 'pipe', 'pipe'] })
  let starts = 0
  const logged: unknown[] = []
  const { proxy: replaced } = await openTestProxy(
    t,
    {},
    {
      log: { warn: (...parts: unknown[]) => void logged.push(parts) },
      start: (settings) => (starts++ === 0 ? evil() : startS3Proxy(undefined, settings)),
    },
  ).catch(async () => openTestProxy(t))

  assert.match(JSON.stringify(logged), /does not follow its protocol/)
  assert.notEqual(replaced.pid, undefined)
})

test('a process that says it listens at another port is not used', async (t) => {
  const script = `const channel = new (require('net').Socket)({ fd: 3 })
    channel.write('{"ready":true}\\n')
    require('readline').createInterface({ input: channel }).on('line', (line) => {
      const { id, method } = JSON.parse(line)
      channel.write(JSON.stringify({ id, result: method === 'listen' ? { port: 1 } : null }) + '\\n')
    })`
  const start = () => spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'ignore', 'pipe', 'pipe'] })

  await assert.rejects(openTestProxy(t, { port: 20_003 }, { start }), /listens at port 1, not 20003/)
})

test('a process that cannot be started for lack of descriptors is an error, and the next attempt succeeds', async (t) => {
  let starts = 0
  /** What spawn returns then: a process without pid and descriptors. */
  const fail = () => {
    const child = new ChildProcess()
    process.nextTick(() => child.emit('error', Object.assign(new Error('spawn EMFILE'), { code: 'EMFILE' })))
    return child
  }
  const start = (settings: S3ProxySettings) => (starts++ === 0 ? fail() : startS3Proxy(undefined, settings))
  const readMachine = readS3ProxyMachine
  const settings = { address: '127.0.0.1', port: 0, privateCidrs: [] }
  const starved = new S3Proxy({ log: { warn() {} }, start, readMachine }, settings)
  t.after(() => starved.close())

  await assert.rejects(starved.start(), { code: 'EMFILE' })
  await starved.start()

  assert.notEqual(starved.pid, undefined)
})

test('answers of a store are reported once for each revision', async (t) => {
  const { proxy: watched } = await openTestProxy(t)
  const answers: MountAnswer[] = []
  watched.on('answered', (answer) => answers.push(answer))
  const known = await addGuest(watched, server)
  await known.request('GET', '/key')
  await known.request('GET', '/key')
  const wrong = { ...known.mount, revision: 2, credentials: { ...known.mount.credentials, secretKey: 'wrong' } }

  await watched.setMounts([wrong])
  await known.request('HEAD', '/')
  await known.request('HEAD', '/')
  await watched.setMounts([{ ...known.mount, revision: 3 }])
  await known.request('HEAD', '/')
  await watched.counts() // Sent after the notices.

  const { id } = known.mount
  assert.deepEqual(answers, [
    { id, revision: 1, ok: true },
    { id, revision: 2, ok: false },
    { id, revision: 3, ok: true },
  ])
})

test('a port of loopback stays open while a mount has its store there, whatever other mounts come and go', async (t) => {
  const opened: (readonly number[])[] = []
  const openLoopback = async (ports: readonly number[]) => void opened.push(ports)
  const { proxy: watched } = await openTestProxy(t, {}, { openLoopback })
  const { mount: local } = describeMount({ ...server, endpoint: 'http://localhost:4711' })
  const { mount: remote } = describeMount({ ...server, endpoint: 'https://s3.example.com' })
  const { mount: other } = describeMount({ ...server, endpoint: 'http://127.0.0.1:4712' }, { allowLoopback: false })

  await Promise.all([watched.setMounts([local]), watched.setMounts([remote, other])])
  assert.deepEqual(opened, [[4711]])
  await watched.removeMounts([remote.id])
  await watched.removeMounts([local.id])

  assert.deepEqual(opened, [[4711], []])
})
