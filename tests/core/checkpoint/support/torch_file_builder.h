// Small files as torch writes them, made by hand, for what torch itself never writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::testing {

// Least significant byte first.
inline std::string Little(uint64_t number, int bytes) {
  std::string text;
  for (int k = 0; k < bytes; ++k) text += k < 8 ? static_cast<char>(number >> (8 * k)) : 0;
  return text;
}

// Pieces of a pickle. Each leaves one value on the stack.
inline std::string Int(int64_t number) {
  return "\x8a\x08" + Little(static_cast<uint64_t>(number), 8);
}
inline std::string Text(std::string_view text) {
  return "X" + Little(text.size(), 4) + std::string(text);
}
inline std::string Name(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string Tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string List(const std::vector<std::string>& items) {
  std::string all = "](";
  for (const std::string& item : items) all += item;
  return all + "e";
}
// Keys and values in turn.
inline std::string Dict(const std::vector<std::string>& items) {
  std::string all = "}(";
  for (const std::string& item : items) all += item;
  return all + "u";
}
inline std::string Call(const std::string& name, const std::vector<std::string>& arguments) {
  return name + Tuple(arguments) + "R";
}
// An object of a class with these fields.
inline std::string Object(const std::string& name, const std::vector<std::string>& fields) {
  return name + ")\x81" + Dict(fields) + "b";
}
inline std::string Numbers(const std::vector<int64_t>& numbers) {
  std::vector<std::string> items;
  for (const int64_t number : numbers) items.push_back(Int(number));
  return Tuple(items);
}
inline std::string PickleOf(const std::string& value) { return "\x80\x02" + value + "."; }

// A float32 tensor over the storage `key` of `elements`.
inline std::string FloatTensor(std::string_view key, int64_t elements, int64_t offset,
                               const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& strides) {
  const std::string storage = Tuple({Text("storage"), Name("torch", "FloatStorage"), Text(key),
                                     Text("cpu"), Int(elements)}) +
                              "Q";
  return Call(Name("torch._utils", "_rebuild_tensor_v2"),
              {storage, Int(offset), Numbers(shape), Numbers(strides), "\x89",
               Call(Name("collections", "OrderedDict"), {})});
}

// A zip, member by member.
class ZipBuilder {
 public:
  // `method` is what the zip says of the content, which is stored as it is.
  ZipBuilder& Add(const std::string& name, const std::string& content, uint16_t method = 0,
                  bool zip64 = false) {
    const std::string wide =
        Little(content.size(), 8) + Little(content.size(), 8) + Little(body_.size(), 8);
    const std::string extra = zip64 ? Little(1, 2) + Little(wide.size(), 2) + wide : "";
    const uint64_t size = zip64 ? 0xFFFFFFFF : content.size();
    const std::string middle = Little(0, 2) + Little(method, 2) + Little(0, 4) + Little(0, 4) +
                               Little(size, 4) + Little(size, 4) + Little(name.size(), 2);
    directory_ += "PK\x01\x02" + Little(20, 2) + Little(20, 2) + middle + Little(extra.size(), 2) +
                  Little(0, 10) + Little(zip64 ? 0xFFFFFFFF : body_.size(), 4) + name + extra;
    body_ += "PK\x03\x04" + Little(20, 2) + middle + Little(0, 2) + name + content;
    ++count_;
    return *this;
  }

  std::string Finish(bool zip64 = false) const {
    std::string all = body_ + directory_;
    if (zip64) {
      const uint64_t end = all.size();
      all += "PK\x06\x06" + Little(44, 8) + Little(45, 2) + Little(45, 2) + Little(0, 8) +
             Little(count_, 8) + Little(count_, 8) + Little(directory_.size(), 8) +
             Little(body_.size(), 8);
      all += "PK\x06\x07" + Little(0, 4) + Little(end, 8) + Little(1, 4);
    }
    return all + "PK\x05\x06" + Little(0, 4) + Little(zip64 ? 0xFFFF : count_, 2) +
           Little(zip64 ? 0xFFFF : count_, 2) + Little(zip64 ? 0xFFFFFFFF : directory_.size(), 4) +
           Little(zip64 ? 0xFFFFFFFF : body_.size(), 4) + Little(0, 2);
  }

 private:
  std::string body_;
  std::string directory_;
  uint64_t count_ = 0;
};

// A torch.save() file of a pickle and its storages, "0" on.
inline std::string TorchFile(const std::string& value,
                             const std::vector<std::string>& storages = {}) {
  ZipBuilder zip;
  zip.Add("archive/data.pkl", PickleOf(value)).Add("archive/byteorder", "little");
  for (size_t k = 0; k < storages.size(); ++k) {
    zip.Add("archive/data/" + std::to_string(k), storages[k]);
  }
  return zip.Finish();
}

// A piece of a tensor in a checkpoint of torch.distributed.checkpoint.
struct TorchChunk {
  std::vector<int64_t> begin;
  std::vector<int64_t> sizes;
};

struct TorchDistributedFiles {
  std::string metadata;  // .metadata
  std::string data;      // __0_0.distcp
};

// A checkpoint of torch.distributed.checkpoint with a float32 tensor 'w', whose element k has the
// bits of k. `change` adds fields to the storage info of each chunk.
inline TorchDistributedFiles MakeTorchDistributedFiles(
    const std::vector<int64_t>& shape, const std::vector<TorchChunk>& chunks,
    const std::vector<std::string>& change = {}) {
  const auto size = [](const std::vector<int64_t>& sizes) {
    return Call(Name("torch", "Size"), {Numbers(sizes)});
  };
  const auto metadata = [](const std::string& name) {
    return Name("torch.distributed.checkpoint.metadata", name);
  };
  std::string data;
  std::vector<std::string> boxes;
  std::vector<std::string> storage;
  for (const TorchChunk& chunk : chunks) {
    std::string bytes;
    int64_t count = 1;
    for (const int64_t extent : chunk.sizes) count *= extent;
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t k = shape.size(); k-- > 1;) strides[k - 1] = strides[k] * chunk.sizes[k];
    for (int64_t element = 0; element < count; ++element) {
      int64_t place = 0;
      for (size_t k = 0; k < shape.size(); ++k) {
        place = place * shape[k] + chunk.begin[k] + element / strides[k] % chunk.sizes[k];
      }
      bytes += Little(static_cast<uint64_t>(place), 4);
    }
    const std::string item = TorchFile(FloatTensor("0", count, 0, chunk.sizes, strides), {bytes});
    boxes.push_back(Object(metadata("ChunkStorageMetadata"),
                           {Text("offsets"), size(chunk.begin), Text("sizes"), size(chunk.sizes)}));
    storage.push_back(Object(metadata("MetadataIndex"),
                             {Text("fqn"), Text("w"), Text("offset"), size(chunk.begin)}));
    std::vector<std::string> info = {Text("relative_path"), Text("__0_0.distcp"),
                                     Text("offset"),        Int(static_cast<int64_t>(data.size())),
                                     Text("length"),        Int(static_cast<int64_t>(item.size()))};
    info.insert(info.end(), change.begin(), change.end());
    storage.push_back(
        Object(Name("torch.distributed.checkpoint.filesystem", "_StorageInfo"), info));
    data += item;
  }
  const std::string properties = metadata("TensorProperties") + ")\x81" +
                                 Tuple({Name("torch", "float32"), "N", "\x89", "N", "\x89"}) + "b";
  const std::string tensor = Object(
      metadata("TensorStorageMetadata"),
      {Text("properties"), properties, Text("size"), size(shape), Text("chunks"), List(boxes)});
  return {
      PickleOf(Object(metadata("Metadata"), {Text("state_dict_metadata"), Dict({Text("w"), tensor}),
                                             Text("storage_data"), Dict(storage)})),
      data};
}

}  // namespace meshrun::testing
