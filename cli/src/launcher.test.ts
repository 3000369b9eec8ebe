/** The launcher at the root of the repository, and its link on the PATH. Run with the shells that Linux systems use as sh. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readlink, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { promisify } from 'node:util'
import { warrenCommand } from '@warren/kit/warren-command'
import { ROOT } from './config.ts'

const LAUNCHER = path.join(ROOT, 'warren')
/** Without root and with WARREN_VMS=off the set-up checks npm packages only. */
const ENV = { PATH: process.env.PATH, HOME: process.env.HOME, WARREN_VMS: 'off' }

async function run(command: string, args: string[], options: { cwd: string; env?: NodeJS.ProcessEnv }) {
  const env = { ...ENV, ...options.env }
  return promisify(execFile)(command, args, { cwd: options.cwd, env }).catch(
    (error: { code: number; stdout: string; stderr: string }) => error,
  )
}

async function createFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren launcher-'))
  t.after(() => rm(folder, { recursive: true }))
  return folder
}

for (const shell of ['dash', 'bash']) {
  test(`the launcher runs from another directory, with ${shell}`, async (t) => {
    const cwd = await createFolder(t)

    const { stdout, stderr } = await run(shell, [LAUNCHER, '--help'], { cwd })

    assert.equal(stderr, '')
    assert.match(stdout, /^Usage: \S*warren \[options\] \[command\]\n/)
  })
}

test('the launcher follows absolute and relative links, and names with spaces', async (t) => {
  const folder = await createFolder(t)
  await mkdir(path.join(folder, 'bin'))
  await symlink(LAUNCHER, path.join(folder, 'real warren'))
  await symlink('../real warren', path.join(folder, 'bin/warren'))

  const { stdout, stderr } = await run('bin/warren', ['tunnel', '--help'], { cwd: folder })

  assert.equal(stderr, '')
  assert.match(stdout, /^Usage: \S*warren tunnel /)
})

test('relative paths are relative to the directory where the launcher is called, also inside an npm script', async (t) => {
  const cwd = await createFolder(t)
  const env = { WARREN_DATA_DIR: 'state', INIT_CWD: '/nowhere' }

  const { stderr } = await run(LAUNCHER, ['env'], { cwd, env })

  assert.ok(stderr.includes(`Warren is not running on ${path.join(cwd, 'state')}; start it with`), stderr)
})

test('the exit status and the arguments pass through', async (t) => {
  const cwd = await createFolder(t)

  const failed = await run(LAUNCHER, ['no such command'], { cwd })

  assert.ok('code' in failed)
  assert.equal(failed.code, 1)
  assert.match(failed.stderr, /unknown command 'no such command'/)
})

test('install links the launcher, messages then say warren, and uninstall removes the link', async (t) => {
  const folder = await createFolder(t)
  const bin = path.join(folder, 'new/bin')
  const env = { PATH: `${bin}:${process.env.PATH}` }

  const installed = await run(LAUNCHER, ['install', bin], { cwd: folder, env })
  assert.equal(installed.stdout, `Linked ${bin}/warren to ${LAUNCHER}.\n`)
  assert.equal(await readlink(path.join(bin, 'warren')), LAUNCHER)
  assert.equal(warrenCommand(env), 'warren')
  const called = await run('sh', ['-c', 'warren env'], { cwd: folder, env: { ...env, WARREN_DATA_DIR: folder } })
  assert.equal(called.stderr, `warren: Warren is not running on ${folder}; start it with warren start\n`)

  const again = await run(LAUNCHER, ['install', 'new/bin'], { cwd: folder, env })
  assert.equal(again.stdout, `${bin}/warren leads to this checkout already.\n`)

  const removed = await run(LAUNCHER, ['uninstall', bin], { cwd: folder, env })
  assert.equal(removed.stdout, `Removed ${bin}/warren.\n`)
  assert.equal(existsSync(path.join(bin, 'warren')), false)
  assert.equal(warrenCommand(env), './warren')
  const repeated = await run(LAUNCHER, ['uninstall', bin], { cwd: folder, env })
  assert.equal(repeated.stdout, `There is no ${bin}/warren.\n`)
})

test('install mentions a folder that is not on the PATH', async (t) => {
  const folder = await createFolder(t)

  const { stdout } = await run(LAUNCHER, ['install', folder], { cwd: folder })

  assert.ok(stdout.includes(`${folder} is not on the PATH of this shell`), stdout)
})

test('install and uninstall leave files that are not links to this checkout alone', async (t) => {
  const folder = await createFolder(t)
  await writeFile(path.join(folder, 'warren'), 'another program')

  for (const command of ['install', 'uninstall']) {
    const refused = await run(LAUNCHER, [command, folder], { cwd: folder })
    assert.ok('code' in refused)
    assert.equal(refused.code, 1)
    assert.match(refused.stderr, /^warren: .* is not a link to this checkout \(a file\)/)
  }

  await rm(path.join(folder, 'warren'))
  await symlink('/opt/other/warren', path.join(folder, 'warren'))
  const refused = await run(LAUNCHER, ['install', folder], { cwd: folder })
  assert.match(refused.stderr, /\(a link to \/opt\/other\/warren\); remove it first\n$/)
  assert.equal(await readlink(path.join(folder, 'warren')), '/opt/other/warren')
})

test('another program of that name earlier on the PATH is not taken for ours', async (t) => {
  const folder = await createFolder(t)
  await mkdir(path.join(folder, 'theirs'))
  await mkdir(path.join(folder, 'ours'))
  await writeFile(path.join(folder, 'theirs/warren'), '')
  await symlink(LAUNCHER, path.join(folder, 'ours/warren'))

  assert.equal(warrenCommand({ PATH: `${folder}/theirs:${folder}/ours` }), './warren')
  assert.equal(warrenCommand({ PATH: `${folder}/ours:${folder}/theirs` }), 'warren')
  assert.equal(warrenCommand({ PATH: '' }), './warren')
})
