/** The network of real VMs through the API: egress rules, private networks, bandwidth and ingress. */
import assert from 'node:assert/strict'
import http, { type IncomingMessage } from 'node:http'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createSandbox, destroySandbox, pauseSandbox, requestOk, resumeSandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const QUOTA_BYTES = 2_000_000
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_BANDWIDTH_QUOTA_BYTES: String(QUOTA_BYTES) }),
)

/** Responds to every request with its first line and the X-Forwarded-For address, or with 3 MB for "large". */
const SERVER = `use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die;
while ($c = $s->accept) { $line = <$c>; $who = ""; while (<$c>) { last if /^\\r?$/; $who = $1 if /^X-Forwarded-For: (\\S+)/i }
$b = $line =~ /large/ ? "x" x 3_000_000 : "$line$who"; print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($b) . "\\r\\n\\r\\n$b"; close $c }`

async function startServer(id: string): Promise<void> {
  await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', SERVER] })
  await until(
    async () => (await runShell(warren, id, 'curl -s -m 2 http://127.0.0.1:8000/ || true')) !== '',
    'the server listens',
  )
}

function requestThroughIngress(
  template: string,
  port: number,
  path = '/hello',
): Promise<{ status: number; body: string }> {
  const url = new URL(template.replace('<port>', String(port)))
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; body: string }>()
  const headers = { host: url.host }
  http
    .get({ host: '127.0.0.1', port: url.port, path, headers, agent: false }, (response: IncomingMessage) => {
      response.toArray().then((chunks) => {
        resolve({ status: response.statusCode!, body: Buffer.concat(chunks).toString() })
      }, reject)
    })
    .once('error', reject)
  return promise
}

describe('the network of sandboxes', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('a server is reached through the ingress, whatever the egress rules are, also after a pause', async () => {
    const { id } = await createSandbox(warren, { ingress_enabled: true, egress: ['none'] })
    const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${id}`)
    const template = ingress_url_template as string
    await startServer(id)

    const first = await requestThroughIngress(template, 8000)
    const closed = await requestThroughIngress(template, 8001)
    await pauseSandbox(warren, id)
    const paused = await requestThroughIngress(template, 8000)
    await resumeSandbox(warren, id)
    const again = await requestThroughIngress(template, 8000)

    assert.deepEqual(first, { status: 200, body: 'GET /hello HTTP/1.1\r\n127.0.0.1' })
    assert.deepEqual([closed.status, paused.status], [502, 503])
    assert.deepEqual(again, first)
    await destroySandbox(warren, id)
  })

  test('members of a network reach each other by name from the response on, until one leaves', async () => {
    const { id: network } = await requestOk(warren, 'POST', '/networks', { name: 'backend' })
    const web = await createSandbox(warren, { name: 'web', networks: [{ id: 'backend' }] })
    const db = await createSandbox(warren, { name: 'db', egress: ['none'] })
    await startServer(db.id)
    const fetchFromDb = () => runShell(warren, web.id, 'curl -s -m 3 http://db:8000/ | head -1 || true')

    const before = await fetchFromDb()
    await requestOk(warren, 'POST', `/sandboxes/${db.id}/networks`, { id: network as string })
    const joined = await fetchFromDb()
    await pauseSandbox(warren, db.id)
    await resumeSandbox(warren, db.id)
    const resumed = await fetchFromDb()
    await requestOk(warren, 'DELETE', `/sandboxes/${db.id}/networks/backend`)
    const left = await fetchFromDb()

    assert.deepEqual([before, left], ['', ''])
    assert.match(joined, /^GET \/ HTTP/)
    assert.match(resumed, /^GET \/ HTTP/)
    for (const { id } of [web, db]) await destroySandbox(warren, id)
    await requestOk(warren, 'DELETE', '/networks/backend')
  })

  test('sent bytes are counted across a pause, and traffic stops at the quota until a recharge', async () => {
    const { id } = await createSandbox(warren, { ingress_enabled: true })
    const getUsed = async () => (await requestOk(warren, 'GET', `/sandboxes/${id}/bandwidth`)).used_bytes as number
    const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${id}`)
    await startServer(id)
    for (let n = 0; n < 5; n++) await requestThroughIngress(ingress_url_template as string, 8000)

    const sent = await getUsed()
    await pauseSandbox(warren, id)
    const paused = await getUsed()
    await resumeSandbox(warren, id)
    const resumed = await getUsed()
    const stalled = requestThroughIngress(ingress_url_template as string, 8000, '/large')
    await until(
      async () => (await requestOk(warren, 'GET', `/sandboxes/${id}/bandwidth`)).capped === true,
      'it is capped',
    )
    const capped = await getUsed()
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
