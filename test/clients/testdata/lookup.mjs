// lookup.mjs SERVER TYPE/NAME... sends each question to a server by Node's resolver, and looks up ADDRESSES by getaddrinfo. It
// prints "= TYPE/NAME", a line for each record of the reply, and "status STATUS".
import { Resolver, lookup } from 'node:dns/promises';

const [server, ...questions] = process.argv.slice(2);
const resolver = new Resolver();
resolver.setServers([server]);

const data = {
  SRV: (r) => `${r.priority} ${r.weight} ${r.port} ${r.name}`,
  MX: (r) => `${r.priority} ${r.exchange}`,
  TXT: (strings) => strings.join(''),
};

async function lines(type, name) {
  if (type === 'ADDRESSES') {
    const all = await lookup(name, { all: true });
    return all.map((a) => `${a.family === 6 ? 'AAAA' : 'A'} ${a.address}`);
  }
  const all = await resolver.resolve(name, type);
  return all.map((r) => `${type} ${(data[type] ?? String)(r)}`);
}

for (const question of questions) {
  const [type, name] = question.split('/');
  console.log(`= ${question}`);
  try {
    (await lines(type, name)).forEach((line) => console.log(line));
    console.log('status NOERROR');
  } catch (error) {
    console.log(`status ${{ ENOTFOUND: 'NXDOMAIN', ENODATA: 'NODATA' }[error.code] ?? error}`);
  }
}
