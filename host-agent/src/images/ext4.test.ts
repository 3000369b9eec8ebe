import assert from 'node:assert/strict'
import { chmod, chown, link, mkdir, stat, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { runCommand, runCommandOrThrow } from '../run-command.ts'
import { estimateMib, makeExt4, packExt4 } from './ext4.ts'
import { CAPABILITY, IS_ROOT, inspectExt4, makeBuild, makeFolder, setCapability } from './testing.ts'
import { TOOL_ENV as env } from './tools.ts'

async function packTree(folder: string, make: (root: string) => Promise<void>): Promise<string> {
  const root = path.join(folder, 'root')
  await mkdir(root)
  await make(root)
  const file = path.join(folder, 'root.ext4')
  await packExt4(makeBuild(folder), root, file)
  return file
}

test('owners, modes, links, attributes and content are preserved', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: changes the owners of files')
  const file = await packTree(await makeFolder(t), async (root) => {
    const program = path.join(root, 'program')
    await writeFile(program, 'content')
    await chown(program, 1000, 70_000)
    await chmod(program, 0o4751)
    setCapability(program)
    await link(program, path.join(root, 'second'))
    await symlink('/elsewhere/program', path.join(root, 'link'))
    await mkdir(path.join(root, 'folder'), { mode: 0o700 })
    await runCommandOrThrow('mknod', [path.join(root, 'null'), 'c', '1', '3'])
  })

  const program = await inspectExt4(file, 'stat /program')
  assert.match(program, /Type: regular\s+Mode: +04751/)
  assert.match(program, /User: +1000 +Group: +70000/)
  assert.match(program, /Links: 2 /)
  assert.equal(/^Inode: (\d+)/.exec(await inspectExt4(file, 'stat /second'))?.[1], /^Inode: (\d+)/.exec(program)?.[1])
  assert.match(program, CAPABILITY)
  assert.match(await inspectExt4(file, 'stat /link'), /Fast link dest: "\/elsewhere\/program"/)
  assert.match(await inspectExt4(file, 'stat /folder'), /Type: directory\s+Mode: +0700/)
  assert.match(await inspectExt4(file, 'stat /null'), /Type: character special[\s\S]*Device major\/minor number: 01:03/)
  assert.equal(await inspectExt4(file, 'cat /program'), 'content')
})

test('the image is clean, has a journal and can grow to the largest disk', async (t) => {
  const file = await packTree(await makeFolder(t), (root) => writeFile(path.join(root, 'file'), 'x'))

  const { stdout } = await runCommandOrThrow('dumpe2fs', ['-h', file], { env })
  assert.match(stdout, /Filesystem features:.*has_journal.*resize_inode.*metadata_csum/)
  assert.match(stdout, /Reserved block count: +0\n/)
  const check = await runCommand('e2fsck', ['-f', '-n', file], { env })
  assert.equal(check.exitCode, 0, check.stdout)
  await runCommandOrThrow('truncate', ['--size=60G', file])
  await runCommandOrThrow('resize2fs', [file], { env })
  assert.equal((await runCommand('e2fsck', ['-f', '-n', file], { env })).exitCode, 0)
  assert.ok((await stat(file)).blocks * 512 < 200e6, 'sparse')
})

test('there are enough inodes for many small files', async (t) => {
  const file = await packTree(await makeFolder(t), async (root) => {
    for (let folder = 0; folder < 20; folder++) {
      await mkdir(path.join(root, `${folder}`))
      for (let i = 0; i < 500; i++) await writeFile(path.join(root, `${folder}`, `${i}`), '')
    }
  })

  assert.match(await inspectExt4(file, 'stat /19/499'), /Type: regular/)
})

test('a size that is too small is retried with a larger one', async (t) => {
  const folder = await makeFolder(t)
  await mkdir(path.join(folder, 'root'))
  await writeFile(path.join(folder, 'root', 'data'), Buffer.alloc(40 * 1024 ** 2, 1))
  const file = path.join(folder, 'root.ext4')

  await makeExt4(makeBuild(folder), path.join(folder, 'root'), file, 70)

  assert.equal((await stat(file)).size, 105 * 1024 ** 2)
  assert.match(await inspectExt4(file, 'stat /data'), /Size: 41943040/)
})

test('an image is only a little larger than its content', () => {
  assert.equal(estimateMib({ bytes: 0, inodes: 1 }), 97)
  assert.equal(estimateMib({ bytes: 100 * 1024 ** 2, inodes: 4000 }), 218)
  assert.equal(estimateMib({ bytes: 0, inodes: 100_000 }), 1719)
})
