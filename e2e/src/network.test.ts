/** The network of real machines, asked for through the API: rules, peers, counts, and the way in. */
import assert from 'node:assert/strict'
import http, { type IncomingMessage } from 'node:http'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createSandbox, destroySandbox, pauseSandbox, requestOk, resumeSandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const QUOTA_BYTES = 2_000_000
const warren = cannotRunVms
  ? (undefined as never)
  : await startVmInstance({ WARREN_BANDWIDTH_QUOTA_BYTES: String(QUOTA_BYTES) })

/** Answers every request with its first line, the host's name and who was said to have asked. */
const PROGRAM = `use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die;
while ($c = $s->accept) { $line = <$c>; $who = ""; while (<$c>) { last if /^\\r?$/; $who = $1 if /^X-Forwarded-For: (\\S+)/i }
$b = $line =~ /large/ ? "x" x 3_000_000 : "$line$who"; print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($b) . "\\r\\n\\r\\n$b"; close $c }`

async function startProgram(id: string): Promise<void> {
  await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', PROGRAM] })
  await until(
    async () => (await runShell(warren, id, 'curl -s -m 2 http://127.0.0.1:8000/ || true')) !== '',
    'it listens',
  )
}

function ask(template: string, port: number, path = '/hello'): Promise<{ status: number; body: string }> {
  const url = new URL(template.replace('<port>', String(port)))
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; body: string }>()
  const headers = { host: url.host }
  http
    .get({ host: '127.0.0.1', port: url.port, path, headers, agent: false }, (answer: IncomingMessage) => {
      answer.toArray().then((chunks) => {
        resolve({ status: answer.statusCode!, body: Buffer.concat(chunks).toString() })
      }, reject)
    })
    .once('error', reject)
  return promise
}

describe('the network', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('a program is reached by name, whatever the sandbox itself may reach, also after a pause', async () => {
    const { id } = await createSandbox(warren, { ingress_enabled: true, egress: ['none'] })
    const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${id}`)
    const template = ingress_url_template as string
    await startProgram(id)

    const first = await ask(template, 8000)
    const closed = await ask(template, 8001)
    await pauseSandbox(warren, id)
    const paused = await ask(template, 8000)
    await resumeSandbox(warren, id)
    const again = await ask(template, 8000)

    assert.deepEqual(first, { status: 200, body: 'GET /hello HTTP/1.1\r\n127.0.0.1' })
    assert.deepEqual([closed.status, paused.status], [502, 503])
    assert.deepEqual(again, first)
    await destroySandbox(warren, id)
  })

  test('members of a network reach each other by name from the answer on, and no longer when one has left', async () => {
    const { id: network } = await requestOk(warren, 'POST', '/networks', { name: 'backend' })
    const web = await createSandbox(warren, { name: 'web', networks: [{ id: 'backend' }] })
    const db = await createSandbox(warren, { name: 'db', egress: ['none'] })
    await startProgram(db.id)
    const reaches = () => runShell(warren, web.id, 'curl -s -m 3 http://db:8000/ | head -1 || true')

    const before = await reaches()
    await requestOk(warren, 'POST', `/sandboxes/${db.id}/networks`, { id: network as string })
    const joined = await reaches()
    await pauseSandbox(warren, db.id)
    await resumeSandbox(warren, db.id)
    const resumed = await reaches()
    await requestOk(warren, 'DELETE', `/sandboxes/${db.id}/networks/backend`)
    const left = await reaches()

    assert.deepEqual([before, left], ['', ''])
    assert.match(joined, /^GET \/ HTTP/)
    assert.match(resumed, /^GET \/ HTTP/)
    for (const { id } of [web, db]) await destroySandbox(warren, id)
    await requestOk(warren, 'DELETE', '/networks/backend')
  })

  test('what it sends is counted over a pause, and stops at the quota until it is recharged', async () => {
    const { id } = await createSandbox(warren, { ingress_enabled: true })
    const used = async () => (await requestOk(warren, 'GET', `/sandboxes/${id}/bandwidth`)).used_bytes as number
    const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${id}`)
    await startProgram(id)
    for (let n = 0; n < 5; n++) await ask(ingress_url_template as string, 8000)

    const sent = await used()
    await pauseSandbox(warren, id)
    const paused = await used()
    await resumeSandbox(warren, id)
    const resumed = await used()
    const stalled = ask(ingress_url_template as string, 8000, '/large')
    await until(
      async () => (await requestOk(warren, 'GET', `/sandboxes/${id}/bandwidth`)).capped === true,
      'it is capped',
    )
    const capped = await used()
    const recharged = await requestOk(warren, 'POST', `/sandboxes/${id}/bandwidth/recharge`, { add_bytes: 10_000_000 })
    const { body } = await stalled

    assert.ok(sent > 5 * 40, `${sent} bytes`)
    assert.ok(paused >= sent && resumed >= paused, `${sent} ${paused} ${resumed}`)
    assert.ok(capped <= QUOTA_BYTES && capped > QUOTA_BYTES - 100_000, `${capped} bytes`)
    assert.deepEqual([recharged.quota_bytes, recharged.capped], [QUOTA_BYTES + 10_000_000, false])
    assert.equal(body.length, 3_000_000)
    await destroySandbox(warren, id)
  })
})
