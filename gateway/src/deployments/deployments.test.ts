/** Deployments from the request to the app, on a control plane whose sandboxes are processes of this machine. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { readdir } from 'node:fs/promises'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { pauseProjects } from '../payments/stop-unpaid.ts'
import {
  addCredit,
  createDeploymentGateway,
  createWalletWithCredit,
  type Deployed,
  deployFiles,
  freePort,
  listSandboxes,
  readLog,
  readStatus,
  signedGet,
  waitForOutcome,
} from '../testing/deployments.ts'
import { createTestWallet, type TestWallet } from '../testing/wallet.ts'

const gateway = await createDeploymentGateway()

/** Listens on PORT; the first argument is what it answers. */
const SERVER = `const http = require('node:http')
console.log('secret is ' + process.env.TOKEN)
http.createServer((request, response) => {
  if (request.url === '/exit') process.exit(3)
  response.end(process.argv[2] || 'hello')
}).listen(process.env.PORT, process.env.HOST)
`

const getText = async (port: number, path = '/'): Promise<string> =>
  (await fetch(`http://127.0.0.1:${port}${path}`)).text()

test('plain HTML: from the request to an app that answers, without a build sandbox', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]

  const deployed = await deployFiles(gateway, wallet, { 'index.html': '<h1>hi</h1>' }, { settings: { port } })
  const outcome = await waitForOutcome(gateway, wallet, deployed)

  const url = `https://${deployed.uniqueName}.apps.localhost`
  assert.deepEqual(outcome, { status: 'ready', deployment_id: deployed.deploymentId, endpoint: url })
  assert.equal(await getText(port), '<h1>hi</h1>')
  const { body } = await signedGet(gateway, wallet, '/agent/projects')
  assert.equal(body.projects[0].status, 'active')
  assert.equal(body.projects[0].url, url)
  assert.equal((await listSandboxes(gateway)).filter(({ name }) => name.includes('build')).length, 0)
})

test('install and build commands run in a build sandbox, which is gone when the app is ready', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
  const settings = {
    port,
    installCommand: 'echo installing; echo "$BUILD_ONLY" > from-install',
    buildCommand: 'cp from-install built; echo "token $BUILD_ONLY"',
    runCommand: 'node server.js "$(cat built)"',
    buildVars: { BUILD_ONLY: 'build-value' },
  }

  const deployed = await deployFiles(gateway, wallet, { 'server.js': SERVER }, { settings })
  assert.equal((await waitForOutcome(gateway, wallet, deployed)).status, 'ready')

  assert.equal(await getText(port), 'build-value')
  const lines = await readLog(gateway, wallet, deployed)
  assert.ok(lines.some((line) => line.source === 'build' && line.text === 'installing'))
  assert.ok(
    lines.some((line) => line.source === 'build' && line.text === 'token ***'),
    'the secret is masked',
  )
  await until(async () =>
    (await listSandboxes(gateway)).every(({ name }) => !name.includes(`${deployed.projectId}-build`)),
  )
})

test('a build that fails: the reason names the command and ends with its output, secrets masked', async () => {
  const wallet = await createWalletWithCredit(gateway)
  const settings = {
    buildCommand: 'echo "cannot find $KEY"; echo detail >&2; exit 9',
    runCommand: 'true',
    buildVars: { KEY: 'hunter22' },
  }

  const deployed = await deployFiles(gateway, wallet, { a: '' }, { settings })
  const outcome = await waitForOutcome(gateway, wallet, deployed)

  assert.equal(outcome.status, 'failed')
  assert.equal(outcome.deployment_status, 'failed')
  assert.match(outcome.reason, /^the build command failed: it exited with 9\n/)
  assert.match(outcome.reason, /cannot find \*\*\*/)
  const { body } = await signedGet(gateway, wallet, '/agent/projects')
  assert.deepEqual([body.projects[0].status, body.projects[0].url], ['failed', null])
  await until(async () => (await listSandboxes(gateway)).every(({ name }) => !name.includes(deployed.projectId)))
})

test('a crash loop is failed, with the output of the app, and its sandbox is destroyed', async () => {
  const wallet = await createWalletWithCredit(gateway)
  const app = "console.error('no database'); process.exit(1)"

  const deployed = await deployFiles(gateway, wallet, { 'app.js': app, 'package.json': '{}' })
  const outcome = await waitForOutcome(gateway, wallet, deployed)

  assert.equal(outcome.status, 'failed')
  assert.match(outcome.reason, /^the app exited with 1 before it answered on port 3000\nno database$/)
  await until(async () => (await listSandboxes(gateway)).every(({ name }) => !name.includes(deployed.projectId)))
})

test('output that the database cannot store, or that a terminal would obey, is cleaned, and the failure is recorded', async () => {
  const wallet = await createWalletWithCredit(gateway)
  const app = `process.stdout.write('\\0'.repeat(20_000) + '\\u001b[31mbro\\u001b]0;x\\u0007ken'); process.exitCode = 1`
  const settings = { port: await freePort(), runCommand: 'node app.js' }

  const deployed = await deployFiles(gateway, wallet, { 'app.js': app }, { settings })

  const { status, reason } = await waitForOutcome(gateway, wallet, deployed)
  assert.equal(status, 'failed')
  assert.match(reason, /^the app exited with 1 before it answered on port \d+\nbroken$/)
})

test('a wrong port is failed, and the reason says where the app listens', async () => {
  const impatient = await createDeploymentGateway({ config: { healthSeconds: 2 } })
  const [wallet, port, other] = [await createWalletWithCredit(impatient), await freePort(), await freePort()]
  const settings = { port, runCommand: `PORT=${other} node server.js` }

  const deployed = await deployFiles(impatient, wallet, { 'server.js': SERVER }, { settings })
  const outcome = await waitForOutcome(impatient, wallet, deployed)

  assert.equal(outcome.status, 'failed')
  assert.match(outcome.reason, new RegExp(`^nothing listens on port ${port} after 2 s\\. It listens on `))
  assert.match(outcome.reason, /the port in the variable PORT/)
})

test('an app that answers 500 is failed, one that answers 404 is ready', async () => {
  const impatient = await createDeploymentGateway({ config: { healthSeconds: 8 } })
  const wallet = await createWalletWithCredit(impatient)
  const answer = (status: number) =>
    `require('node:http').createServer((_, r) => { r.statusCode = ${status}; r.end() }).listen(process.env.PORT)`
  const outcomes = await Promise.all(
    [500, 404].map(async (status) => {
      const files = { 'app.js': answer(status), 'package.json': '{}' }
      const deployed = await deployFiles(impatient, wallet, files, { settings: { port: await freePort() } })
      return waitForOutcome(impatient, wallet, deployed)
    }),
  )

  assert.match(outcomes[0].reason, /^the app answered with status 500 for 8 s/)
  assert.equal(outcomes[1].status, 'ready')
})

test('what cannot be detected is failed with what to set', async () => {
  const wallet = await createWalletWithCredit(gateway)

  const deployed = await deployFiles(gateway, wallet, { 'notes.txt': 'x' })

  assert.match((await waitForOutcome(gateway, wallet, deployed)).reason, /^could not detect how to run this project/)
})

test('a redeploy keeps the project; the old version serves until the new one is healthy, then its sandbox goes', async () => {
  const [wallet, first, second] = [await createWalletWithCredit(gateway), await freePort(), await freePort()]
  const files = { 'server.js': SERVER }
  const one = await deployFiles(gateway, wallet, files, { settings: { port: first, runCommand: 'node server.js one' } })
  await waitForOutcome(gateway, wallet, one)

  const again = { uniqueName: one.uniqueName, settings: { port: second, runCommand: 'sleep 1; node server.js two' } }
  const two = await deployFiles(gateway, wallet, files, again)
  assert.equal(two.projectId, one.projectId)
  assert.equal((await signedGet(gateway, wallet, '/agent/projects')).body.projects[0].status, 'active')
  assert.equal(await getText(first), 'one')
  assert.equal((await waitForOutcome(gateway, wallet, two)).status, 'ready')

  assert.equal(await getText(second), 'two')
  assert.equal((await readStatus(gateway, wallet, one)).status, 'ready', 'what was ready stays ready')
  await until(
    async () => (await listSandboxes(gateway)).filter(({ name }) => name.includes(one.projectId)).length === 1,
  )
})

test('a failed redeploy leaves the project active and the old version served', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
  const one = await deployFiles(gateway, wallet, { 'index.html': 'one' }, { settings: { port } })
  const { endpoint } = await waitForOutcome(gateway, wallet, one)

  const broken = { uniqueName: one.uniqueName, settings: { runCommand: 'exit 1' } }
  const two = await deployFiles(gateway, wallet, { 'index.html': 'two' }, broken)
  assert.equal((await waitForOutcome(gateway, wallet, two)).status, 'failed')

  const [project] = (await signedGet(gateway, wallet, '/agent/projects')).body.projects
  assert.deepEqual([project.status, project.url], ['active', endpoint])
  assert.equal(await getText(port), 'one')
})

test('a newer deploy cancels an unfinished older one, and its sandboxes go', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
  const slow = { buildCommand: 'sleep 600', runCommand: 'true' }
  const one = await deployFiles(gateway, wallet, { a: '1' }, { settings: slow })
  await until(async () => (await readStatus(gateway, wallet, one)).deployment_status === 'building')

  const two = await deployFiles(
    gateway,
    wallet,
    { 'index.html': '2' },
    { uniqueName: one.uniqueName, settings: { port } },
  )

  const cancelled = await readStatus(gateway, wallet, one)
  assert.deepEqual(
    [cancelled.status, cancelled.deployment_status, cancelled.reason],
    ['failed', 'cancelled', 'superseded'],
  )
  assert.equal((await waitForOutcome(gateway, wallet, two)).status, 'ready')
  await until(
    async () => (await listSandboxes(gateway)).filter(({ name }) => name.includes(one.projectId)).length === 1,
  )
})

test('delete: the project is gone from the list, its sandboxes are destroyed, its name is free', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
  const one = await deployFiles(gateway, wallet, { 'index.html': 'x' }, { settings: { port } })
  await waitForOutcome(gateway, wallet, one)
  const url = `/agent/projects/${one.projectId}`

  assert.equal((await signedGet(gateway, createTestWallet(), url, 'DELETE')).status, 403)
  const deleted = await signedGet(gateway, wallet, url, 'DELETE')

  assert.deepEqual(deleted.body, { projectId: one.projectId, status: 'deleted' })
  await until(async () => (await listSandboxes(gateway)).every(({ name }) => !name.includes(one.projectId)))
  await until(async () => (await signedGet(gateway, wallet, url, 'DELETE')).status === 404)
  assert.equal((await signedGet(gateway, wallet, '/agent/projects')).body.count, 0)
  const again = await deployFiles(
    gateway,
    wallet,
    { 'index.html': 'y' },
    { uniqueName: one.uniqueName, settings: { port } },
  )
  assert.notEqual(again.projectId, one.projectId)
  assert.equal((await waitForOutcome(gateway, wallet, again)).status, 'ready')
})

test('delete: files, logs and variables are gone with the project, except an upload that another project uses', async () => {
  const [wallet, shared] = [await createWalletWithCredit(gateway), `shared ${randomUUID()}`]
  const settings = { buildCommand: 'true', runEnvs: { TOKEN: 'secret' } }
  const [one, two] = await Promise.all(
    [await freePort(), await freePort()].map((port) =>
      deployFiles(gateway, wallet, { 'index.html': shared }, { settings: { ...settings, port } }),
    ),
  )
  for (const each of [one!, two!]) assert.equal((await waitForOutcome(gateway, wallet, each)).status, 'ready')
  const { rows } = await gateway.deps.database.pool.query(
    'select distinct upload_digest from gateway.deployments where project_id = any($1)',
    [[one!.projectId, two!.projectId]],
  )
  assert.equal(rows.length, 1)
  const artifactOf = ({ deploymentId }: Deployed) => `artifacts/${deploymentId}.tar.gz`
  const upload = `uploads/${rows[0].upload_digest}.tar.gz`
  const listFiles = async () => (await readdir(gateway.deps.config.dataDir, { recursive: true })).toSorted()
  for (const file of [artifactOf(one!), artifactOf(two!), upload]) assert.ok((await listFiles()).includes(file), file)
  const remove = async ({ projectId }: Deployed) => {
    const url = `/agent/projects/${projectId}`
    assert.equal((await signedGet(gateway, wallet, url, 'DELETE')).status, 200)
    await until(async () => (await signedGet(gateway, wallet, url, 'DELETE')).status === 404)
  }

  await remove(one!)

  const left = await listFiles()
  assert.deepEqual(
    [artifactOf(one!), artifactOf(two!), upload].map((file) => left.includes(file)),
    [false, true, true],
  )
  await remove(two!)
  const nothing = await listFiles()
  assert.deepEqual(
    [artifactOf(two!), upload].map((file) => nothing.includes(file)),
    [false, false],
  )
  const remaining = await gateway.deps.database.pool.query(
    `select d.secrets, (select count(*)::int from gateway.log_lines l where l.deployment_id = d.id) as lines
     from gateway.deployments d where d.project_id = any($1)`,
    [[one!.projectId, two!.projectId]],
  )
  assert.deepEqual(remaining.rows, Array(2).fill({ secrets: null, lines: 0 }))
})

test('delete during a build cancels it', async () => {
  const wallet = await createWalletWithCredit(gateway)
  const settings = { buildCommand: 'sleep 600', runCommand: 'true' }
  const one = await deployFiles(gateway, wallet, { a: '1' }, { settings })
  await until(async () => (await readStatus(gateway, wallet, one)).deployment_status === 'building')

  await signedGet(gateway, wallet, `/agent/projects/${one.projectId}`, 'DELETE')

  await until(async () => (await signedGet(gateway, wallet, '/agent/projects')).body.count === 0)
  assert.equal((await listSandboxes(gateway)).filter(({ name }) => name.includes(one.projectId)).length, 0)
})

test('an app that exits is started again, and its output continues in the log', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
  const settings = { port, runCommand: 'node server.js', runEnvs: { TOKEN: 'very-secret' } }
  const deployed = await deployFiles(gateway, wallet, { 'server.js': SERVER }, { settings })
  await waitForOutcome(gateway, wallet, deployed)

  await getText(port, '/exit').catch(() => {}) // The app exits before it answers.

  await until(async () => (await getText(port).catch(() => '')) === 'hello')
  await until(async () => {
    const lines = await readLog(gateway, wallet, deployed)
    const starts = lines.filter((line) => line.source === 'app' && line.text === 'secret is ***')
    return starts.length === 2 && lines.some((line) => line.text.startsWith('the app exited with 3; starting it again'))
  })
})

test('a sandbox that is lost is made again', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
  const deployed = await deployFiles(gateway, wallet, { 'index.html': 'back' }, { settings: { port } })
  await waitForOutcome(gateway, wallet, deployed)
  const [lost] = (await listSandboxes(gateway)).filter(({ name }) => name.includes(deployed.projectId))

  await gateway.deps.controlPlane.destroySandbox(lost!.id)

  await until(async () => (await getText(port).catch(() => '')) === 'back')
  const [now] = (await listSandboxes(gateway)).filter(({ name }) => name.includes(deployed.projectId))
  assert.notEqual(now!.id, lost!.id)
})

/** What the meter does when the pool is empty, some hours ago. */
async function useUpCredit(wallet: TestWallet, { projectId }: Deployed, hours: number): Promise<void> {
  const { pool } = gateway.deps.database
  const address = wallet.address.toLowerCase()
  await pool.query(
    `insert into gateway.ledger (wallet, amount_micro, kind, project_id)
     select address, -balance_micro, 'usage', $2 from gateway.wallets where address = $1`,
    [address, projectId],
  )
  const at = new Date(Date.now() - hours * 3_600_000)
  await gateway.deps.db.transaction().execute((tx) => pauseProjects(tx, address, at))
}

test('without credit the app is paused, a payment resumes it, and after 72 hours without one it is deleted', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway, 1_000_000n), await freePort()]
  const deployed = await deployFiles(gateway, wallet, { 'index.html': 'paid' }, { settings: { port } })
  await waitForOutcome(gateway, wallet, deployed)
  const statusOf = async () => (await signedGet(gateway, wallet, '/agent/projects')).body.projects[0]?.status
  const sandboxStatus = async () =>
    (await listSandboxes(gateway)).find(({ name }) => name.includes(deployed.projectId))?.status

  await useUpCredit(wallet, deployed, 1)
  await until(async () => (await sandboxStatus()) === 'paused')
  assert.equal(await statusOf(), 'pending')
  assert.equal((await readStatus(gateway, wallet, deployed)).status, 'ready', 'the url stays')

  await addCredit(gateway, wallet, 500_000n)
  await until(async () => (await statusOf()) === 'active')
  assert.equal(await sandboxStatus(), 'running')

  await useUpCredit(wallet, deployed, 73)
  await until(async () => (await sandboxStatus()) === undefined)
  await until(async () => (await statusOf()) === undefined)
})

test('an app that lost its sandbox while it was unpaid is made again after a payment', async () => {
  const [wallet, port] = [await createWalletWithCredit(gateway, 1_000_000n), await freePort()]
  const deployed = await deployFiles(gateway, wallet, { 'index.html': 'again' }, { settings: { port } })
  await waitForOutcome(gateway, wallet, deployed)
  const ofProject = async () =>
    (await listSandboxes(gateway)).filter(({ name }) => name.includes(deployed.projectId)).map(({ status }) => status)
  await useUpCredit(wallet, deployed, 1)
  await until(async () => (await ofProject()).join() === 'paused')
  // The supervisor was about to replace a lost sandbox when the credit ended: a new attempt, without a sandbox yet.
  await gateway.deps.database.pool.query('update gateway.deployments set attempt = attempt + 1 where id = $1', [
    deployed.deploymentId,
  ])
  await until(async () => (await ofProject()).length === 0)

  await addCredit(gateway, wallet, 500_000n)

  await until(async () => (await getText(port).catch(() => '')) === 'again')
  const { body } = await signedGet(gateway, wallet, '/agent/projects')
  assert.equal(body.projects[0].status, 'active')
})

test('a wallet has two builds at a time, and the others wait as queued', async () => {
  const wallet = await createWalletWithCredit(gateway)
  const settings = { buildCommand: 'sleep 600', runCommand: 'true' }
  const all = await Promise.all([1, 2, 3].map((n) => deployFiles(gateway, wallet, { a: `${n}` }, { settings })))
  const statuses = async () =>
    (await Promise.all(all.map((one) => readStatus(gateway, wallet, one)))).map((one) => one.deployment_status).sort()

  await until(async () => (await statuses()).filter((status) => status === 'building').length === 2)
  await passTime(1_500, 'a third would have been claimed by now')

  assert.deepEqual(await statuses(), ['building', 'building', 'queued'])
  for (const { projectId } of all) await signedGet(gateway, wallet, `/agent/projects/${projectId}`, 'DELETE')
})

test('the result of a build has a size limit', async () => {
  const small = await createDeploymentGateway({ config: { resultMaxBytes: 100_000 } })
  const wallet = await createWalletWithCredit(small)
  const settings = { buildCommand: 'head -c 200000 /dev/urandom > large', runCommand: 'true' }

  const deployed = await deployFiles(small, wallet, { a: '' }, { settings })
  const outcome = await waitForOutcome(small, wallet, deployed)

  assert.match(outcome.reason, /^the result of the build is larger than 100000 bytes/)
  const artifacts = await readdir(`${small.deps.config.dataDir}/artifacts`)
  assert.deepEqual(artifacts, [])
})

test('a program that writes empty lines without end fills neither the log nor the memory', async () => {
  const small = await createDeploymentGateway({ config: { logMaxBytes: 20_000, buildSeconds: 6 } })
  const wallet = await createWalletWithCredit(small)
  const deployed = await deployFiles(
    small,
    wallet,
    { a: '' },
    { settings: { buildCommand: "yes ''", runCommand: 'true' } },
  )

  const outcome = await waitForOutcome(small, wallet, deployed)

  assert.match(outcome.reason, /^the build took longer than 6 s/)
  const { rows } = await small.deps.database.pool.query(
    'select count(*)::int as kept, max(seq)::int as written from gateway.log_lines where deployment_id = $1',
    [deployed.deploymentId],
  )
  assert.ok(rows[0].kept <= 700, `${rows[0].kept} lines are kept`)
  assert.ok(rows[0].written <= 300_000, `${rows[0].written} lines were written`)
})

test('logs: only the owner reads them, `after` continues, and the limit drops the oldest lines', async () => {
  const small = await createDeploymentGateway({ config: { logMaxBytes: 2_000 } })
  const wallet = await createWalletWithCredit(small)
  const settings = { buildCommand: 'for i in $(seq 1 500); do echo "line $i"; done', runCommand: 'exit 4' }
  const deployed = await deployFiles(small, wallet, { a: '' }, { settings })
  await waitForOutcome(small, wallet, deployed)

  const url = `/agent/deploy/${deployed.projectId}/${deployed.deploymentId}/logs`
  assert.equal((await signedGet(small, createTestWallet(), url)).status, 403)
  assert.equal((await signedGet(small, wallet, `${url}?after=-1`)).status, 400)
  const lines = await until(async () => {
    const all = await readLog(small, wallet, deployed)
    return all.at(-1)?.text.startsWith('failed: ') && all
  })
  const bytes = lines.reduce((sum, { text }) => sum + text.length, 0)
  assert.ok(bytes <= 2_000 && lines.some((line) => line.text === 'line 500'), `${bytes} bytes`)
  const middle = lines[3]!.seq
  assert.equal((await readLog(small, wallet, deployed, middle))[0]!.seq, middle + 1)
})
