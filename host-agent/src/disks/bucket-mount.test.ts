/** The mount program, through the S3 proxy, on real S3 servers. */
import assert from 'node:assert/strict'
import fs from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { S3_SERVERS, startS3Server } from '@warren/kit/testing/s3-server'
import { runCommandOrThrow } from '../run-command.ts'
import { mountBucket } from './testing/mounted-bucket.ts'
import { openTestProxy } from './testing/proxy.ts'
import { createRandom, startRandomOperations } from './testing/random-operations.ts'

const OPERATIONS = 20_000
const REMOUNTS = 5
const MIB = 1 << 20

const PROGRAMS = `
  mkdir -p source/sub; for i in 1 2 3 4 5; do echo $i > source/$i; echo $i > source/sub/$i; done
  chmod 755 source/1; ln -s ../1 source/sub/link
  tar -cf archive.tar source; mkdir unpacked; tar -xf archive.tar -C unpacked
  python3 -m venv --without-pip env
  git init -q repository; git -C repository -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m first
  cp -r source/sub repository/; git -C repository add .
  git -C repository -c user.name=t -c user.email=t@example.com commit -q -m second; git clone -q repository clone
  python3 - <<'END'
import mmap, sqlite3
with sqlite3.connect('rows.db') as db:
    db.execute('create table t (n integer)')
    db.executemany('insert into t values (?)', [(n,) for n in range(100)])
db.close()
with open('mapped', 'w+b') as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as map:
        map[4096:4102] = b'MAPPED'
END
  cat > check.py <<'END'
import sqlite3
print('rows', sqlite3.connect('rows.db').execute('select count(*) from t').fetchone()[0])
print('mapped', open('mapped', 'rb').read()[4096:4102].decode())
END
`

const { proxy } = await openTestProxy({ after })

for (const name of S3_SERVERS) {
  const server = await startS3Server({ after }, name)
  await server.createBucket('media')
  const run = (script: string, folder: string) => runCommandOrThrow('sh', ['-euc', `cd "$1"; ${script}`, 'sh', folder])

  test(`${name}: conditions of writes are found to be honoured`, async (t) => {
    const mounted = await mountBucket(t, proxy, server, { subPath: 'conditions' })

    assert.equal((await mounted.command({ do: 'status' })).status.conditions, 'honoured')
    assert.equal((await mounted.command({ do: 'check' })).ok, true)
    assert.deepEqual(await fs.readdir(mounted.path), [])
  })

  test(`${name}: files, links, modes and directories survive a new mount`, async (t) => {
    const mounted = await mountBucket(t, proxy, server, { subPath: 'posix' })

    await run(
      `mkdir -p dir/sub empty; echo hello > dir/f; echo more >> dir/f; chmod 750 dir/f; chown 1000:1001 dir/f
       touch -d @1234567890.5 dir/f; ln -s dir/f link; mv dir/sub dir/moved; echo x > 'ü +&%?'; echo y > gone; rm gone
       truncate -s 3 'ü +&%?'; printf Z | dd of=dir/f bs=1 seek=1 conv=notrunc status=none`,
      mounted.path,
    )
    await mounted.remount()

    const stat = await fs.stat(path.join(mounted.path, 'dir/f'))
    assert.equal(await fs.readFile(path.join(mounted.path, 'link'), 'utf8'), 'hZllo\nmore\n')
    assert.deepEqual([stat.mode, stat.uid, stat.gid], [0o100750, 1000, 1001])
    assert.deepEqual((await fs.readdir(mounted.path)).sort(), ['dir', 'empty', 'link', 'ü +&%?'])
    assert.deepEqual((await fs.readdir(path.join(mounted.path, 'dir'))).sort(), ['f', 'moved'])
    assert.deepEqual(await fs.readFile(path.join(mounted.path, 'ü +&%?')), Buffer.from('x\n\0'))
    await assert.rejects(fs.link(path.join(mounted.path, 'dir/f'), path.join(mounted.path, 'hard')), { code: 'EPERM' })
  })

  test(`${name}: databases, archives, memory mappings and virtual environments work`, async (t) => {
    const mounted = await mountBucket(t, proxy, server, { subPath: 'programs' })

    await run(PROGRAMS, mounted.path)
    await mounted.remount()

    const { stdout } = await run(
      `python3 check.py; env/bin/python -c 'print("from", __import__("sys").prefix)'`,
      mounted.path,
    )
    assert.equal(stdout, `rows 100\nmapped MAPPED\nfrom ${mounted.path}/env\n`)
    await run('diff -r source unpacked/source; diff -r --no-dereference source/sub clone/sub', mounted.path)
    assert.equal((await run('git -C clone status --short; git -C clone fsck', mounted.path)).stdout, '')
  })

  test(`${name}: a large file is written in parts, changed in the middle, and read back`, async (t) => {
    const mounted = await mountBucket(t, proxy, server, { subPath: 'large' })
    const file = path.join(mounted.path, 'file')
    const data = Buffer.alloc(40 * MIB + 5, 'some text that repeats ')

    await fs.writeFile(file, data)
    const handle = await fs.open(file, 'r+')
    await handle.write('changed', 20 * MIB)
    await handle.close()
    data.write('changed', 20 * MIB)
    await mounted.remount()

    assert.ok((await fs.readFile(file)).equals(data))
    await fs.rename(file, `${file}.renamed`)
    assert.equal((await fs.stat(`${file}.renamed`)).size, data.length)
  })

  test(`${name}: two mounts that change one file do not overwrite each other`, async (t) => {
    const first = await mountBucket(t, proxy, server, { subPath: 'shared' })
    const second = await mountBucket(t, proxy, server, { subPath: 'shared' })
    await fs.writeFile(path.join(first.path, 'f'), 'start')
    const open = await Promise.all([first, second].map((mount) => fs.open(path.join(mount.path, 'f'), 'r+')))

    await open[0]!.write('first', 0)
    await open[1]!.write('second', 0)
    await open[0]!.sync()
    // Node has no name for ESTALE.
    await assert.rejects(open[1]!.sync(), { errno: -os.constants.errno.ESTALE })
    await open[0]!.close()
    await assert.rejects(open[1]!.close(), { errno: -os.constants.errno.ESTALE })

    assert.equal(await fs.readFile(path.join(first.path, 'f'), 'utf8'), 'first')
    const { problems } = (await second.command({ do: 'status' })).status
    assert.match(await fs.readFile(problems[0]!.kept!, 'utf8'), /^second/)
    const created = await Promise.allSettled(
      [first, second].map((mount) => fs.writeFile(path.join(mount.path, 'lock'), 'x', { flag: 'wx' })),
    )
    assert.deepEqual(created.map((result) => result.status).sort(), ['fulfilled', 'rejected'])
  })

  test(`${name}: ${OPERATIONS} random operations give what an ordinary folder gives`, async (t) => {
    const mounted = await mountBucket(t, proxy, server, { subPath: 'random' })
    const shadow = await fs.mkdtemp(path.join(path.dirname(mounted.path), 'shadow-'))

    const operations = startRandomOperations(createRandom(20_261_117), mounted.path, shadow, {
      // It lists folders from which everything was renamed or deleted (docs/disk-files.md).
      renamesFolders: name !== 'seaweedfs',
    })
    for (let round = 0; round < REMOUNTS; round++) {
      operations.run(OPERATIONS / REMOUNTS)
      operations.closeAll()
      await mounted.remount()
      operations.compare()
    }
  })
}
